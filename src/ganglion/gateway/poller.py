"""Who is there: a watch over every node of the fleet, as nodes come and go."""

import asyncio
from dataclasses import dataclass

from ganglion.gateway.fleet import Fleet
from ganglion.gateway.inquiry import PollSettings
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.outbound import Outbound
from ganglion.gateway.watch import Watch


@dataclass(frozen=True, slots=True)
class _Watched:
    spec: NodeSpec
    watch: Watch
    task: asyncio.Task[None]


class Poller:
    """Watches each node in a task of its own, so that none waits for another."""

    def __init__(self, fleet: Fleet, outbound: Outbound, settings: PollSettings | None = None) -> None:
        self._fleet = fleet
        self._outbound = outbound
        self._settings = settings or PollSettings()
        self._watched: dict[str, _Watched] = {}

    async def run(self) -> None:
        """Watch until cancelled; every task that was begun has ended when this returns."""
        changed = asyncio.Event()
        deafen = self._fleet.listen(changed.set)
        try:
            while True:
                changed.clear()
                await self._follow()
                await changed.wait()
        finally:
            deafen()
            await self._end(tuple(self._watched))

    def poke(self, name: str) -> None:
        """Ask a node at once: somebody failed to reach it.

        Where its port is closed, three attempts 50 ms apart make it unhealthy. A node is not asked more often
        than every 100 ms however many ask.
        """
        watched = self._watched.get(name)
        if watched is not None:
            watched.watch.poke()

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
                watch = Watch(name, self._fleet, self._outbound, self._settings)
                task = asyncio.create_task(watch.run(), name=f"watch {name}")
            elif watched.spec == view.spec:
                continue
            else:  # it joined anew, and is worth a look
                watch, task = watched.watch, watched.task
                watch.poke()
            self._watched[name] = _Watched(view.spec, watch, task)

    async def _end(self, names: tuple[str, ...]) -> None:
        tasks = [self._watched.pop(name).task for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_elsewhere(one: NodeSpec, other: NodeSpec) -> bool:
    return (one.url, one.kind) != (other.url, other.kind)
