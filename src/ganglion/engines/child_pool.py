"""Children of one kind, as many as are needed, asked in turns that are fair between tenants.

Law: tenants take turns, and none has all children unless there is only one. The first child stays; more are
started when somebody has waited, and ended when nothing was asked for a while. What is asked must be pure: a
child that died of something other than its processor time was perhaps killed from outside, and its question
is asked once more.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import Final

from ganglion.core.errors import Overloaded, ShuttingDown
from ganglion.core.fair_queue import FairQueue
from ganglion.engines.async_child import AsyncChild, spawn_async
from ganglion.engines.child import ChildDied, ChildLimits, ChildNotStarted
from ganglion.engines.fair_semaphore import FairPermit, FairSemaphore

_ATTEMPTS: Final = 2
_PATIENCE_S: Final = 0.05
"""A wait after which another child is started: most answers take milliseconds, and a start a hundred."""
_SPARE_S: Final = 5.0
"""How long those beside the first stay when nothing is asked."""


class ChildPool:
    """Asks children of one module, as many at once as there are."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        limits: ChildLimits,
        most: int,
        most_waiting: int,
        most_waiting_each: int,
        work: str,
        items: str,
    ) -> None:
        """`work` says what a child does ("decodes images") and `items` what waits for it, for people."""
        self._command = (module, *arguments)
        self._limits = limits
        self._most = most
        self._work = work
        self._turns = FairSemaphore(1, 1, FairQueue(most=most_waiting, most_each=most_waiting_each, of=items))
        self._children: set[AsyncChild] = set()
        self._idle: list[AsyncChild] = []
        self._growing: asyncio.Task[None] | None = None
        self._shrinking: asyncio.Task[None] | None = None
        self._asked = self._inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_closed = False

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The children that there are."""
        return tuple(child.process_id for child in self._children)

    @property
    def room(self) -> int:
        """How many may be asked at once now."""
        return self._turns.room

    async def open(self) -> None:
        """Start the first child now, so that the first question does not wait for it."""
        self._is_closed = False
        if not self._children:
            with await self._turns.enter(""):
                self._idle.append(await self._start())

    async def close(self) -> None:
        """End the children; questions that run or wait end with ShuttingDown."""
        self._is_closed = True
        tasks = [task for task in (self._growing, self._shrinking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for child in self._children:
            child.kill()
        await self._is_empty.wait()
        for child in tuple(self._children):
            await self._discard(child)

    async def ask(self, tenant: str, cost: int, frame: Callable[[], bytes]) -> bytes:
        """The answer to a frame, which is made when its turn comes; `cost` is its size in the queue.

        Raises Overloaded where too much waits, TimeoutError, ShuttingDown, and ChildDied with how the child
        ended. Cancelling a question that has begun kills the child that it was put to.
        """
        self._asked += 1
        self._inside += 1
        self._is_empty.clear()
        try:
            with self._turns.take(tenant, cost=cost) or await self._wait(tenant, cost):
                return await self._ask(frame())
        finally:
            self._inside -= 1
            if not self._inside:
                self._is_empty.set()

    async def _ask(self, frame: bytes) -> bytes:
        failure: ChildDied | None = None
        for _ in range(_ATTEMPTS):
            if self._is_closed:
                break
            child = self._idle.pop() if self._idle else await self._start()
            try:
                return await child.ask(frame)
            except ChildDied as death:
                if death.code == -signal.SIGPROF:
                    raise
                failure = death
            finally:
                self._put_back(child)
        if failure is None or self._is_closed:
            raise ShuttingDown(f"The process that {self._work} is shutting down.")
        raise failure

    async def _wait(self, tenant: str, cost: int) -> FairPermit:
        growth = asyncio.get_running_loop().call_later(_PATIENCE_S, self._grow)
        try:
            return await self._turns.enter(tenant, cost=cost)
        finally:
            growth.cancel()

    def _grow(self) -> None:
        """Start another child beside those that are busy, where somebody waits and there may be one more."""
        has_room = self._growing is None and self._turns.room < self._most
        if self._turns.waiting and has_room and not self._is_closed:
            self._growing = asyncio.create_task(self._add_child())

    async def _add_child(self) -> None:
        try:
            self._idle.append(await self._start())
        except Overloaded:
            return  # those that are there go on; whoever waits next tries again
        finally:
            self._growing = None
        self._turns.room += 1
        # One is left to whoever comes anew.
        self._turns.share(max(self._turns.room - 1, 1))
        asyncio.get_running_loop().call_later(_PATIENCE_S, self._grow)
        if self._shrinking is None or self._shrinking.done():
            self._shrinking = asyncio.create_task(self._shrink())

    async def _shrink(self) -> None:
        """End all children but one once nothing has been asked for a while."""
        asked = -1
        while asked != self._asked or self._inside:
            asked = self._asked
            await asyncio.sleep(_SPARE_S)
        spare, self._idle = self._idle[1:], self._idle[:1]
        self._turns.room = 1
        self._turns.share(1)
        for child in spare:
            await self._discard(child)

    async def _start(self) -> AsyncChild:
        try:
            child = await spawn_async(*self._command, limits=self._limits)
        except ChildNotStarted as error:
            raise Overloaded(
                f"The process that {self._work} did not start.", hint="Retry in a moment."
            ) from error
        self._children.add(child)
        return child

    def _put_back(self, child: AsyncChild) -> None:
        if child.is_ended:
            self._children.discard(child)
        else:
            self._idle.append(child)

    async def _discard(self, child: AsyncChild) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        await child.end()
