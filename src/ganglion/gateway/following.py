"""A worker without a watch of its own: its fleet is what the gateway's leading process says of it.

Law: while the leader is away the last that it said holds. What was asked of it is asked again once somebody
has taken its place: to load a model or to look at a node twice does no harm.
"""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgspec

from ganglion.core.errors import GanglionError, UpstreamUnavailable
from ganglion.gateway import shared
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.node import NodeSpec, NodeView
from ganglion.gateway.fleet.quarantine import MAX_REMEMBERED, Quarantine
from ganglion.gateway.placing.node_calls import LOAD_S
from ganglion.gateway.placing.reservations import PATIENCE_S
from ganglion.gateway.shared import MAX_SHARED_BYTES, Noticed, Shared, Wanted
from ganglion.gateway.upstream.node_client import NodeClient, NodeResponse
from ganglion.wire.upstream.upstream_errors import decode_error_response

logger = logging.getLogger("ganglion.gateway")

WAIT_S: Final = 2.0
"""How long the leader may have nothing to tell."""
GAP_S: Final = 0.01
"""Between its words: what changes together is told together."""
AWAY_S: Final = 0.1
"""Between attempts to reach a leader that is not there."""
SUCCESSION_S: Final = 15.0
"""How long somebody who needs the leader waits for another to take its place."""
NOTICE_S: Final = 0.1
_ANSWER_S: Final = 5.0


class Follower:
    """Keeps a fleet as the leader says, and is its Loader; `poke` passes on who was not reached,
    and `quarantine` is shared with everybody."""

    def __init__(self, fleet: Fleet, outbound: NodeClient, leader: NodeSpec, quarantine: Quarantine) -> None:
        self._fleet = fleet
        self._quarantine = quarantine
        quarantine.on_add = self._found_poison
        self._outbound = outbound
        self._leader = leader
        self._version = ""
        self._news = asyncio.Event()
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._unreached: set[str] = set()
        self._poison: set[bytes] = set()
        self._noticed = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        is_away = False
        while True:
            try:
                await self._hear()
            except (GanglionError, msgspec.MsgspecError) as error:
                if not is_away:
                    logger.warning("the leading worker is away, and its last word holds: %s", error)
                is_away = True
                await asyncio.sleep(AWAY_S)
            else:
                if is_away:
                    logger.info("the leading worker is there")
                is_away = False
                await asyncio.sleep(GAP_S)

    async def heard(self) -> None:
        """Wait for the leader's first word."""
        while not self._version:
            await self._wait()

    async def load(self, model: str) -> None:
        """Return once some node holds the model; one question to the leader, however many ask."""
        task = self._loads.get(model)
        if task is None:
            task = self._loads[model] = asyncio.create_task(self._load(model), name=f"ask for {model}")
            task.add_done_callback(lambda _: self._loads.pop(model))
        await asyncio.shield(task)

    def poke(self, name: str) -> None:
        """Have the leader look at a node: somebody failed to reach it."""
        if name in self._fleet.nodes:
            self._unreached.add(name)
            self._noticed.set()

    async def pass_on(self) -> None:
        """Tell the leader what was found out here, until cancelled."""
        while True:
            await self._noticed.wait()
            self._noticed.clear()
            noticed = Noticed(tuple(sorted(self._unreached)), tuple(self._poison)[:MAX_REMEMBERED])
            self._unreached, self._poison = set(), set()
            try:
                await self._call("POST", "/notice", shared.encode(noticed))
            except GanglionError as error:
                logger.debug("the leading worker did not hear what was noticed: %s", error)
                self._poison |= (
                    self._quarantine.held
                )  # nodes are looked at anyhow, and this is known to nobody
                self._noticed.set()
            await asyncio.sleep(NOTICE_S)

    async def close(self) -> None:
        """Wait for no load any more; the leader goes on with it."""
        tasks = tuple(self._loads.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self) -> None:
        target = f"/shared?since={self._version}&wait={WAIT_S}"
        answer = await self._call("GET", target, max_bytes=MAX_SHARED_BYTES)
        if answer.status != 200:
            raise UpstreamUnavailable(f"The leading worker answered {answer.status}.")
        self._take(shared.parse_shared(answer.body))
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _take(self, told: Shared) -> None:
        known = self._fleet.nodes
        changed = {view.name: _settled(known.get(view.name), view) for view in told.views}
        self._fleet.follow(
            {name: changed.get(name) or known[name] for name in told.names},
            resting=told.resting,
            learned={(node, replica): model for node, replica, model in told.learned},
            loading=told.loading,
            lapsed=told.lapsed,
            failed_loads=told.failed_loads,
        )
        for digest in told.poison:
            self._quarantine.hold(digest)
        self._version = told.version

    def _found_poison(self, digest: bytes) -> None:
        self._poison.add(digest)
        self._noticed.set()

    async def _load(self, model: str) -> None:
        body = shared.encode(Wanted(model))
        until_s: float | None = None
        while True:
            try:
                answer = await self._call("POST", "/load", body, timeout_s=LOAD_S + PATIENCE_S)
                break
            except UpstreamUnavailable:
                now_s = time.monotonic()
                until_s = until_s or now_s + SUCCESSION_S
                if now_s >= until_s:
                    raise
                await asyncio.sleep(AWAY_S)
        if answer.status != 200:
            raise decode_error_response(answer.status, answer.headers, answer.body, model=model)
        await self._catch_up(shared.parse_caught(answer.body).version)

    async def _catch_up(self, version: str) -> None:
        """Wait until what the leader saw is seen here, too."""
        boot, _, number = version.rpartition(".")
        until_s = time.monotonic() + _ANSWER_S
        while time.monotonic() < until_s:
            known, _, seen = self._version.rpartition(".")
            if known == boot and int(seen) >= int(number):
                return
            await self._wait()

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                await self._news.wait()

    async def _call(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        timeout_s: float = _ANSWER_S,
        max_bytes: int = 2**20,
    ) -> NodeResponse:
        return await self._outbound.call(
            self._leader, method, target, body=body, timeout_s=timeout_s, max_bytes=max_bytes
        )


def _settled(known: NodeView | None, view: NodeView) -> NodeView:
    """The view with the very spec that was known, where it is the same: connections are kept by it."""
    return view if known is None or known.spec != view.spec else replace(view, spec=known.spec)
