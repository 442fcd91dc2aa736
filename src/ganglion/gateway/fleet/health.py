"""Health checks: each node is probed again and again, and the fleet keeps what it answers.

Law: three failures in a row make a node unhealthy, one success heals it. After a connection that was refused
or broke off the next attempt follows at once, until there are three: a process that ended is known to be gone
after some 0.1 s, and a connection that merely grew old costs nothing. A node that does not answer in time, or
not sensibly, is probed again at the usual pace.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from ganglion.core.errors import DeadlineExceeded, GanglionError, UpstreamRefused, UpstreamUnavailable
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.probe import NodeProbe, PollSettings
from ganglion.gateway.node import NodeSpec, NodeView
from ganglion.gateway.upstream.node_client import NodeClient

_logger = logging.getLogger("ganglion.gateway")

_MAX_FAILURES: Final = 3
"""So many in a row make a node unhealthy."""
_JITTER: Final = 0.2
_MAX_ERROR_CHARS: Final = 300


def jittered(pause_s: float, chance: float) -> float:
    """A pause, a fifth shorter or longer at most, so that nodes are not all probed at one time."""
    return pause_s * (1 + _JITTER * (2 * chance - 1))


class _NodeHealthCheck:
    """Probes one node until its `run` is cancelled, or the node is no longer in the fleet."""

    def __init__(
        self,
        name: str,
        fleet: Fleet,
        node_client: NodeClient,
        settings: PollSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._name = name
        self._fleet = fleet
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._probe = NodeProbe(node_client, settings, clock=clock)
        self._probe_requested = asyncio.Event()
        self._probed_s: float | None = None

    def probe_now(self) -> None:
        """Probe at once, also while the node is waited for; nothing happens where that was a moment ago."""
        now_s = self._clock()
        if self._probed_s is None or now_s - self._probed_s >= self._settings.probe_gap_s:
            self._probed_s = now_s
            self._probe_requested.set()
            self._probe.interrupt_wait()

    async def run(self) -> None:
        """Probe, update the fleet, pause."""
        while (known := self._fleet.nodes.get(self._name)) is not None:
            self._probe_requested.clear()
            pause_s = await self._ask(known)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._probe_requested.wait()

    async def _ask(self, known: NodeView) -> float:
        """Probe once; how long to pause now."""
        try:
            view = await self._probe.ask(known)
        except GanglionError as error:
            return self._failed(known.spec, error)
        except Exception as error:  # whatever a node says, it is probed again
            _logger.exception("the answer of node %s could not be read", self._name)
            return self._failed(known.spec, error)
        self._answered(view)
        if known.spec.is_ours and self._probe.is_to_discover:
            await self._discover(known.spec)
        pause_s = self._settings.gap_s if self._probe.is_waited else self._settings.every_s
        return jittered(pause_s, self._chance())

    async def _discover(self, spec: NodeSpec) -> None:
        current = self._current(spec)
        if current is None:
            return
        try:
            found = await self._probe.discover(current)
        except GanglionError as error:
            _logger.debug("node %s did not answer /discovery: %s", self._name, error)
            return
        current = self._current(spec)
        if current is not None:
            self._fleet.put(replace(current, grpc=found.grpc, version=found.version))

    def _answered(self, view: NodeView) -> None:
        current = self._current(view.spec)
        if current is None:
            return
        if not current.is_healthy:
            _logger.info("node %s is healthy", self._name)
        if view.boot != current.boot:
            # It is another process: what was learned of the one before, and its failures, do not count.
            self._fleet.succeeded(self._name)
            self._fleet.put(replace(view, spec=current.spec, grpc=current.spec.grpc))
        else:
            self._fleet.put(replace(view, spec=current.spec, grpc=current.grpc, version=current.version))

    def _failed(self, spec: NodeSpec, error: Exception) -> float:
        self._probe.forget()
        current = self._current(spec)
        if current is None:
            return 0.0
        failures = current.failures + 1
        is_healthy = current.is_healthy and failures < _MAX_FAILURES
        if current.is_healthy and not is_healthy:
            _logger.warning("node %s is unhealthy: %s", self._name, error)
        is_cut = isinstance(error, UpstreamUnavailable) and not isinstance(error, UpstreamRefused)
        # One that answers, if only nonsense, is alive: requests that run there may still be answered.
        is_silent = is_cut or isinstance(error, DeadlineExceeded)
        self._fleet.put(
            replace(
                current,
                failures=failures,
                is_healthy=is_healthy,
                is_silent=not is_healthy and is_silent,
                error=str(error)[:_MAX_ERROR_CHARS] or "unknown",
            )
        )
        if is_cut and failures < _MAX_FAILURES:
            return self._settings.confirm_s
        return jittered(self._settings.every_s, self._chance())

    def _current(self, probed: NodeSpec) -> NodeView | None:
        """What the fleet knows of the node that was probed; None where another server has its name by now."""
        view = self._fleet.nodes.get(self._name)
        return view if view is not None and view.spec.is_same_server(probed) else None


@dataclass(frozen=True, slots=True)
class _CheckedNode:
    spec: NodeSpec
    check: _NodeHealthCheck
    task: asyncio.Task[None]


class FleetHealthCheck:
    """Checks each node in a task of its own, so that none waits for another."""

    def __init__(self, fleet: Fleet, node_client: NodeClient, settings: PollSettings | None = None) -> None:
        self._fleet = fleet
        self._node_client = node_client
        self._settings = settings or PollSettings()
        self._checked: dict[str, _CheckedNode] = {}

    async def run(self) -> None:
        """Check until cancelled; every task that was started has ended when this returns."""
        changed = asyncio.Event()
        stop_listening = self._fleet.listen(changed.set)
        try:
            while True:
                changed.clear()
                await self._update()
                await changed.wait()
        finally:
            stop_listening()
            await self._end(tuple(self._checked))

    def probe_now(self, name: str) -> None:
        """Probe a node at once: a request failed to reach it.

        Where its port is closed, three attempts 50 ms apart make it unhealthy. A node is not probed more
        often than every 100 ms.
        """
        checked = self._checked.get(name)
        if checked is not None:
            checked.check.probe_now()

    async def _update(self) -> None:
        """Start checks of nodes that came, and end those of nodes that left."""
        nodes = self._fleet.nodes  # of this moment; what changes below is seen next
        await self._end(
            tuple(
                name
                for name, checked in self._checked.items()
                if name not in nodes
                or not checked.spec.is_same_server(nodes[name].spec)
                or checked.task.done()
            )
        )
        for name, view in nodes.items():
            checked = self._checked.get(name)
            if checked is None:
                check = _NodeHealthCheck(name, self._fleet, self._node_client, self._settings)
                task = asyncio.create_task(check.run(), name=f"check {name}")
            elif checked.spec == view.spec:
                continue
            else:  # it joined anew, and may have changed
                check, task = checked.check, checked.task
                check.probe_now()
            self._checked[name] = _CheckedNode(view.spec, check, task)

    async def _end(self, names: tuple[str, ...]) -> None:
        tasks = [self._checked.pop(name).task for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
