"""The sessions of a tenant on every node at once.

Law: a node that does not know the gateway's tenants shows all sessions to each of them. So what a tenant that
never was is shown too is nobody's, unless this process heard whose it is.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ganglion.core.errors import GanglionError
from ganglion.gateway.access.admission import Identity
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView
from ganglion.server.gateway.relay.relay_calls import RelayCall, RelayNodes
from ganglion.server.gateway.relay.session_handles import SessionLocation
from ganglion.wire.dialects import SESSIONS_WIRE
from ganglion.wire.salience import salience_pb2 as pb

# Nothing is lost with it: a session that is not in here is asked for at its node.

MAX_KNOWN: Final = 65_536
"""The sessions of sixteen keys that have as many as a node gives each; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """Whose session it is, and its model."""

    tenant: str
    model: str


class SessionOwners:
    """The sessions that were heard of last."""

    def __init__(self, limit: int = MAX_KNOWN) -> None:
        self._limit = limit
        self._heard: dict[SessionLocation, SessionOwner] = {}

    def note(self, place: SessionLocation, heard: SessionOwner) -> None:
        """A session, now the one heard of last."""
        self._heard.pop(place, None)
        if len(self._heard) >= self._limit:
            del self._heard[next(iter(self._heard))]
        self._heard[place] = heard

    def of(self, place: SessionLocation) -> SessionOwner | None:
        """What is known of a session; None where it is too long ago, or was another process's."""
        return self._heard.get(place)

    def forget(self, place: SessionLocation) -> None:
        """A session that is no more."""
        self._heard.pop(place, None)


LIST_S: Final = 2.0
"""A node that takes longer is left out."""

_EMPTY: Final = pb.ListSessionsRequest().SerializeToString()
_METHOD: Final = "ListSessions"


class SessionListing:
    """Asks the nodes what they hold."""

    def __init__(self, fleet: Fleet, nodes: RelayNodes, register: SessionOwners) -> None:
        self._fleet = fleet
        self._nodes = nodes
        self._register = register
        self._nobody = Identity(f"nobody-{secrets.token_hex(16)}")

    async def all(self, call: RelayCall, named: Callable[[SessionLocation], str]) -> pb.ListSessionsResponse:
        """The asker's sessions on all nodes that answer in time, each under the name that it is to have."""
        asked = [view for view in self._fleet.nodes.values() if _has_sessions(view)]
        found = await asyncio.gather(*(self._of(view, call) for view in asked))
        listed = pb.ListSessionsResponse()
        for view, infos in zip(asked, found, strict=True):
            for info in infos:
                info.session_id = named(SessionLocation(view.name, info.session_id))
                listed.sessions.append(info)
        return listed

    async def held(self, view: NodeView, call: RelayCall) -> list[pb.SessionInfo]:
        """What a node shows the asker."""
        reply = await self._nodes.ask(view, replace(call, method=_METHOD), _EMPTY)
        return list(pb.ListSessionsResponse.FromString(reply).sessions)

    async def _of(self, view: NodeView, call: RelayCall) -> list[pb.SessionInfo]:
        try:
            async with asyncio.timeout(LIST_S):
                infos = await self.held(view, call)
                if not call.asker.tenant or not infos:
                    return infos
                # After the first list, so that nothing stands in that one and not yet in this.
                stranger = replace(call, asker=replace(call.asker, identity=self._nobody))
                shown = {info.session_id for info in await self.held(view, stranger)}
        except (GanglionError, TimeoutError):
            return []
        return [
            info
            for info in infos
            if info.session_id not in shown or self._is_own(SessionLocation(view.name, info.session_id), call)
        ]

    def _is_own(self, place: SessionLocation, call: RelayCall) -> bool:
        heard = self._register.of(place)
        return heard is not None and heard.tenant == call.asker.tenant


def _has_sessions(view: NodeView) -> bool:
    return view.spec.is_ours and SESSIONS_WIRE in view.spec.wires and view.is_healthy
