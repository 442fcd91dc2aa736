"""Lists the sessions of a tenant on every node at once.

Law: a node that does not know the gateway's tenants shows all sessions to each of them. So what is shown to a
made-up tenant too is nobody's, unless this process knows whose it is.
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

_MAX_KNOWN: Final = 65_536
"""The sessions of sixteen keys that have as many as a node gives each. The oldest are forgotten first, and
nothing is lost with them: their nodes are asked."""


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """Whose session it is, and its model."""

    tenant: str
    model: str


class SessionOwners:
    """Whose the sessions are that were used last."""

    def __init__(self, limit: int = _MAX_KNOWN) -> None:
        self._limit = limit
        self._known: dict[SessionLocation, SessionOwner] = {}

    def note(self, location: SessionLocation, owner: SessionOwner) -> None:
        """Remember whose a session is, as the latest one."""
        self._known.pop(location, None)
        if len(self._known) >= self._limit:
            del self._known[next(iter(self._known))]
        self._known[location] = owner

    def of(self, location: SessionLocation) -> SessionOwner | None:
        """Whose a session is; None where it is too long ago, or was opened through another process."""
        return self._known.get(location)

    def forget(self, location: SessionLocation) -> None:
        """Forget a session that was closed."""
        self._known.pop(location, None)


LIST_S: Final = 2.0
"""A node that takes longer is left out."""

_EMPTY: Final = pb.ListSessionsRequest().SerializeToString()
_METHOD: Final = "ListSessions"


class SessionListing:
    """Asks the nodes for their sessions."""

    def __init__(self, fleet: Fleet, nodes: RelayNodes, owners: SessionOwners) -> None:
        self._fleet = fleet
        self._nodes = nodes
        self._owners = owners
        self._nobody = Identity(f"nobody-{secrets.token_hex(16)}")

    async def all(
        self, call: RelayCall, handle_of: Callable[[SessionLocation], str]
    ) -> pb.ListSessionsResponse:
        """The caller's sessions on all nodes that answer in time, each under its handle."""
        views = [view for view in self._fleet.nodes.values() if _has_sessions(view)]
        found = await asyncio.gather(*(self._sessions_on(view, call) for view in views))
        listed = pb.ListSessionsResponse()
        for view, infos in zip(views, found, strict=True):
            for info in infos:
                info.session_id = handle_of(SessionLocation(view.name, info.session_id))
                listed.sessions.append(info)
        return listed

    async def on_node(self, view: NodeView, call: RelayCall) -> list[pb.SessionInfo]:
        """The sessions that a node shows the caller."""
        reply = await self._nodes.ask(view, replace(call, method=_METHOD), _EMPTY)
        return list(pb.ListSessionsResponse.FromString(reply).sessions)

    async def _sessions_on(self, view: NodeView, call: RelayCall) -> list[pb.SessionInfo]:
        try:
            async with asyncio.timeout(LIST_S):
                infos = await self.on_node(view, call)
                if not call.caller.tenant or not infos:
                    return infos
                # After the first list, so that nothing stands in that one and not yet in this.
                stranger = replace(call, caller=replace(call.caller, identity=self._nobody))
                shown = {info.session_id for info in await self.on_node(view, stranger)}
        except (GanglionError, TimeoutError):
            return []
        return [
            info
            for info in infos
            if info.session_id not in shown or self._is_own(SessionLocation(view.name, info.session_id), call)
        ]

    def _is_own(self, location: SessionLocation, call: RelayCall) -> bool:
        owner = self._owners.of(location)
        return owner is not None and owner.tenant == call.caller.tenant


def _has_sessions(view: NodeView) -> bool:
    return view.spec.is_ours and SESSIONS_WIRE in view.spec.wires and view.is_healthy
