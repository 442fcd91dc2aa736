"""One node under watch: asked how it is, again and again, and each answer told to the fleet.

Law: three failures in a row make a node unhealthy, one success heals it. After a connection that was refused
or broke off the next attempt follows at once, until there are three: a process that ended is known to be gone
after some 0.1 s, and a connection that merely grew old costs nothing. A node that does not answer in time, or
not sensibly, is asked again at the usual pace.
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

logger = logging.getLogger("ganglion.gateway")

MAX_FAILURES: Final = 3
"""So many in a row make a node unhealthy."""
JITTER: Final = 0.2
_MAX_ERROR_CHARS: Final = 300


def jittered(pause_s: float, chance: float) -> float:
    """A pause, a fifth shorter or longer at most, so that nodes are not all asked at one time."""
    return pause_s * (1 + JITTER * (2 * chance - 1))


class NodeHealthCheck:
    """Asks one node until its `run` is cancelled, or the node is no longer in the fleet."""

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
        self._inquiry = NodeProbe(node_client, settings, clock=clock)
        self._probe_asked = asyncio.Event()
        self._probed_s: float | None = None

    def probe_now(self) -> None:
        """Ask at once, also where news are awaited that may never come; too often it does nothing."""
        now_s = self._clock()
        if self._probed_s is None or now_s - self._probed_s >= self._settings.probe_gap_s:
            self._probed_s = now_s
            self._probe_asked.set()
            self._inquiry.interrupt_wait()

    async def run(self) -> None:
        """Ask, tell, pause."""
        while (known := self._fleet.nodes.get(self._name)) is not None:
            self._probe_asked.clear()
            pause_s = await self._ask(known)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._probe_asked.wait()

    async def _ask(self, known: NodeView) -> float:
        """How long to leave the node alone now."""
        try:
            heard = await self._inquiry.ask(known)
        except GanglionError as error:
            return self._failed(known.spec, error)
        except Exception as error:  # whatever a node says, it is asked again
            logger.exception("the answer of node %s was not understood", self._name)
            return self._failed(known.spec, error)
        self._heard(heard)
        if known.spec.is_ours and self._inquiry.is_to_discover:
            await self._discover(known.spec)
        return self._jittered(self._settings.gap_s if self._inquiry.is_waited else self._settings.every_s)

    async def _discover(self, spec: NodeSpec) -> None:
        current = self._current(spec)
        if current is None:
            return
        try:
            found = await self._inquiry.discover(current)
        except GanglionError as error:
            logger.debug("node %s does not say what it is: %s", self._name, error)
            return
        current = self._current(spec)
        if current is not None:
            self._fleet.put(replace(current, grpc=found.grpc, version=found.version))

    def _heard(self, heard: NodeView) -> None:
        current = self._current(heard.spec)
        if current is None:
            return
        if not current.is_healthy:
            logger.info("node %s is there", self._name)
        if heard.boot != current.boot:
            # What was found out about the process before, and held against it, is nothing of this one's.
            self._fleet.succeeded(self._name)
            self._fleet.put(replace(heard, spec=current.spec, grpc=current.spec.grpc))
        else:
            self._fleet.put(replace(heard, spec=current.spec, grpc=current.grpc, version=current.version))

    def _failed(self, spec: NodeSpec, error: Exception) -> float:
        self._inquiry.forget()
        current = self._current(spec)
        if current is None:
            return 0.0
        failures = current.failures + 1
        is_healthy = current.is_healthy and failures < MAX_FAILURES
        if current.is_healthy and not is_healthy:
            logger.warning("node %s is unhealthy: %s", self._name, error)
        is_cut = isinstance(error, UpstreamUnavailable) and not isinstance(error, UpstreamRefused)
        # One that answers, if only nonsense, is alive: what it was asked may still be answered.
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
        if is_cut and failures < MAX_FAILURES:
            return self._settings.confirm_s
        return self._jittered(self._settings.every_s)

    def _current(self, asked: NodeSpec) -> NodeView | None:
        """What the fleet holds of the node that was asked; None where its name is another's by now."""
        view = self._fleet.nodes.get(self._name)
        if view is None or (view.spec.url, view.spec.kind) != (asked.url, asked.kind):
            return None
        return view

    def _jittered(self, pause_s: float) -> float:
        return jittered(pause_s, self._chance())


@dataclass(frozen=True, slots=True)
class _Watched:
    spec: NodeSpec
    watch: NodeHealthCheck
    task: asyncio.Task[None]


class FleetHealthCheck:
    """Watches each node in a task of its own, so that none waits for another."""

    def __init__(self, fleet: Fleet, node_client: NodeClient, settings: PollSettings | None = None) -> None:
        self._fleet = fleet
        self._node_client = node_client
        self._settings = settings or PollSettings()
        self._watched: dict[str, _Watched] = {}

    async def run(self) -> None:
        """Watch until cancelled; every task that was begun has ended when this returns."""
        changed = asyncio.Event()
        stop_listening = self._fleet.listen(changed.set)
        try:
            while True:
                changed.clear()
                await self._follow()
                await changed.wait()
        finally:
            stop_listening()
            await self._end(tuple(self._watched))

    def probe_now(self, name: str) -> None:
        """Ask a node at once: somebody failed to reach it.

        Where its port is closed, three attempts 50 ms apart make it unhealthy. A node is not asked more often
        than every 100 ms however many ask.
        """
        watched = self._watched.get(name)
        if watched is not None:
            watched.watch.probe_now()

    async def _follow(self) -> None:
        """Begin to watch who came, and leave alone who went."""
        nodes = self._fleet.nodes  # of this moment; whatever changes below is followed next
        await self._end(
            tuple(
                name
                for name, watched in self._watched.items()
                if name not in nodes or _is_elsewhere(watched.spec, nodes[name].spec) or watched.task.done()
            )
        )
        for name, view in nodes.items():
            watched = self._watched.get(name)
            if watched is None:
                watch = NodeHealthCheck(name, self._fleet, self._node_client, self._settings)
                task = asyncio.create_task(watch.run(), name=f"watch {name}")
            elif watched.spec == view.spec:
                continue
            else:  # it joined anew, and is worth a look
                watch, task = watched.watch, watched.task
                watch.probe_now()
            self._watched[name] = _Watched(view.spec, watch, task)

    async def _end(self, names: tuple[str, ...]) -> None:
        tasks = [self._watched.pop(name).task for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_elsewhere(one: NodeSpec, other: NodeSpec) -> bool:
    return (one.url, one.kind) != (other.url, other.kind)
