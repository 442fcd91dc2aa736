"""Probes one node, by the routes that it is known to have.

One of our nodes reports everything on `/fleet/state`, and waits until something changed; one that lacks that
route is asked for `/models` and `/health`. Any other server is asked for `/v1/models`. A bad `/health` or
`/discovery` alone is no failure.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ganglion.core.errors import GanglionError, UpstreamRefused
from ganglion.gateway.fleet.node_views import grpc_of, listed_view, polled_view, state_view, version_of
from ganglion.gateway.node import NodeSpec, NodeView
from ganglion.gateway.upstream.node_client import NodeClient, NodeResponse
from ganglion.wire.fleet import parse_state
from ganglion.wire.upstream.polling import (
    PolledHealth,
    parse_discovery,
    parse_health,
    parse_model_list,
    parse_models,
)

MAX_ANSWER_BYTES: Final = 8 * 2**20
"""Some kilobytes for each model."""
_DISCOVER_AGAIN_S: Final = 10.0
"""After a `/discovery` that failed: the node works without."""


@dataclass(frozen=True, slots=True)
class PollSettings:
    """How often nodes are probed, and how long they may take."""

    every_s: float = 2.0
    wait_s: float = 2.0
    """How long `/fleet/state` may wait for a change: a node that hangs goes unnoticed for as long."""
    timeout_s: float = 2.0
    """For an answer, beyond what the node was asked to wait."""
    gap_s: float = 0.1
    """Between an answer of `/fleet/state` and the next probe: a busy node changes all the time."""
    confirm_s: float = 0.05
    """Before the next attempt after a connection that failed."""
    probe_gap_s: float = 0.1
    """The shortest time between two probes that are asked for by `probe_now`."""


class NodeProbe:
    """Probes one node, one call at a time, and remembers which routes it has."""

    def __init__(
        self, node_client: NodeClient, settings: PollSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._node_client = node_client
        self._settings = settings
        self._clock = clock
        self._has_state = True
        self._version: int | None = None
        self._uptime_s = 0.0
        self._wait: asyncio.Timeout | None = None
        self._is_discovered = False
        self._discover_at_s = 0.0

    @property
    def is_to_discover(self) -> bool:
        """Whether it is time to ask for `/discovery`: once a start, and again where that failed."""
        return not self._is_discovered and self._clock() >= self._discover_at_s

    @property
    def is_waited(self) -> bool:
        """Whether the next probe is answered only when something changed."""
        return self._version is not None

    async def ask(self, known: NodeView) -> NodeView:
        """The state of the node; raises GanglionError where it does not answer."""
        spec = known.spec
        if not spec.is_ours:
            return listed_view(spec, parse_model_list(await self._get(spec, "/v1/models")), self._clock())
        if self._has_state:
            answer = await self._state(spec)
            if answer.status != 404:
                state = parse_state(_good(answer))
                self._version = state.version
                if state.boot != known.boot:
                    self._is_discovered, self._discover_at_s = False, 0.0
                return state_view(spec, state, self._clock())
            self._has_state = False
        return await self._polled(known)

    def interrupt_wait(self) -> None:
        """Wait no longer for a change: ask for the state as it is now."""
        if self._wait is not None:
            self._wait.reschedule(asyncio.get_running_loop().time())

    def forget(self) -> None:
        """The node did not answer: what answers next may be another one."""
        self._version = None
        if not self._has_state:
            self._has_state, self._is_discovered = True, False

    async def discover(self, known: NodeView) -> NodeView:
        """The view with what the node says on `/discovery`; raises GanglionError."""
        self._discover_at_s = self._clock() + _DISCOVER_AGAIN_S
        discovery = parse_discovery(await self._get(known.spec, "/discovery"))
        self._is_discovered, self._discover_at_s = True, 0.0
        grpc = known.spec.grpc or grpc_of(known.spec, discovery.grpc)
        return replace(known, grpc=grpc, version=version_of(discovery))

    async def _state(self, spec: NodeSpec) -> NodeResponse:
        if self._version is not None:
            wait_s = self._settings.wait_s
            path = f"/fleet/state?since={self._version}&wait={wait_s:g}"
            try:
                async with asyncio.timeout(None) as self._wait:
                    return await self._call(spec, path, wait_s + self._settings.timeout_s)
            except TimeoutError:  # interrupted; the call has errors of its own
                self._version = None
            finally:
                self._wait = None
        return await self._call(spec, "/fleet/state", self._settings.timeout_s)

    async def _polled(self, known: NodeView) -> NodeView:
        asking = asyncio.create_task(self._health(known.spec))
        try:
            models = parse_models(await self._get(known.spec, "/models"))
            health = await asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        view = polled_view(known.spec, models, health, self._clock())
        if health is None:
            return replace(view, is_draining=known.is_draining, devices=known.devices)
        if health.uptime_s < self._uptime_s:  # it started anew between two questions
            self.forget()
        self._uptime_s = health.uptime_s
        return view

    async def _health(self, spec: NodeSpec) -> PolledHealth | None:
        try:
            return parse_health(await self._get(spec, "/health"))
        except GanglionError:
            return None

    async def _get(self, spec: NodeSpec, path: str) -> bytes:
        return _good(await self._call(spec, path, self._settings.timeout_s))

    async def _call(self, spec: NodeSpec, path: str, timeout_s: float) -> NodeResponse:
        return await self._node_client.call(
            spec, "GET", path, timeout_s=timeout_s, max_bytes=MAX_ANSWER_BYTES
        )


def _good(answer: NodeResponse) -> bytes:
    if answer.status != 200:
        raise UpstreamRefused(f"It answered with status {answer.status}.")
    return answer.body
