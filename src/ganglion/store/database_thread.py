"""A thread with one session: callers await their job, and jobs that wait together are committed together.

Law: whoever is answered was committed; a job that fails takes no other one with it.

There is no window that a lone writer would have to sit through: while one group is being synced the next one
gathers, so that the disk's own pace decides how large groups are.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

from ganglion.core.errors import GanglionError, Overloaded, StoreUnavailable
from ganglion.store.backend import DatabaseConnection, Job

T = TypeVar("T")

QUEUE_LIMIT: Final = 4096
"""Some seconds of a slow disk; whoever comes then is better told so than left waiting."""
GROUP_LIMIT: Final = 256
"""The last of a group waits for all of it, and a transaction that fails is done again one by one."""
IDLE_S: Final = 1.0
"""A connection that rested longer is tried before it is trusted with a transaction."""
KEEP_S: Final = 15.0
"""How often a resting connection is tried: others tell by it that this store lives."""


@dataclass(slots=True)
class _PendingJob:
    job: Job[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None
    is_run: bool = False

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class DatabaseThread:
    """Runs jobs on a session of its own; a writer in transactions, a reader each for itself."""

    def __init__(self, connect: Callable[[], DatabaseConnection], *, is_writer: bool) -> None:
        self._connect = connect
        self._is_writer = is_writer
        self._queue: deque[_PendingJob] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._session: DatabaseConnection | None = None
        self._used_s = 0.0
        # A daemon: a store that nobody closed must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._work, name="ganglion-store", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """How many jobs wait."""
        return len(self._queue)

    async def run(self, job: Job[T]) -> T:
        """What the job returns, once it is committed; a job may be run again after its transaction failed."""
        loop = asyncio.get_running_loop()
        waiting = _PendingJob(job, loop, loop.create_future())
        with self._changed:
            if self._is_closing:
                raise StoreUnavailable("The store is closed.")
            if len(self._queue) >= QUEUE_LIMIT:
                raise Overloaded(f"{QUEUE_LIMIT} requests wait for the store already.")
            self._queue.append(waiting)
            self._changed.notify()
        result: T = await waiting.future
        return result

    async def close(self) -> None:
        """Run what waits, close the session, end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while (group := self._next_group()) is not None:
            if not group:
                self._keep()
                continue
            try:
                self._run(group)
            except Exception as error:  # noqa: BLE001 (the thread's outermost door: nobody may wait for ever)
                for waiting in group:
                    waiting.error = waiting.error if waiting.is_run else error
            _settle(group)
        self._drop()

    def _next_group(self) -> list[_PendingJob] | None:
        """What waits, at most a group of it; nothing after a long rest, None when there will be no more."""
        size = GROUP_LIMIT if self._is_writer else 1
        with self._changed:
            if not self._queue and not self._is_closing:
                self._changed.wait(KEEP_S)
            if not self._queue and self._is_closing:
                return None
            return [self._queue.popleft() for _ in range(min(size, len(self._queue)))]

    def _run(self, group: list[_PendingJob]) -> None:
        session = self._ready()
        try:
            if self._is_writer:
                self._commit(session, group)
            else:
                _attempt(session, group[0])
        finally:
            self._used_s = monotonic()
            try:
                session.roll_back()
            except GanglionError:
                self._drop()

    def _commit(self, session: DatabaseConnection, group: list[_PendingJob]) -> None:
        session.begin()
        try:
            for waiting in group:
                waiting.result = waiting.job(session)
            session.commit()
        except Exception as error:  # noqa: BLE001 (it is the callers', who await it)
            session.roll_back()
            if len(group) == 1:
                group[0].error, group[0].is_run = error, True
                return
            for waiting in group:
                self._commit(session, [waiting])
            return
        for waiting in group:
            waiting.is_run = True

    def _ready(self) -> DatabaseConnection:
        if self._session is not None and monotonic() - self._used_s > IDLE_S:
            try:
                self._session.ping()
            except GanglionError:
                self._drop()
        if self._session is None:
            self._session = self._connect()
        return self._session

    def _keep(self) -> None:
        if self._session is not None:
            with suppress(GanglionError):
                self._ready()
            self._used_s = monotonic()

    def _drop(self) -> None:
        if self._session is not None:
            with suppress(GanglionError):
                self._session.close()
            self._session = None


def _attempt(session: DatabaseConnection, waiting: _PendingJob) -> None:
    try:
        waiting.result = waiting.job(session)
    except Exception as error:  # noqa: BLE001 (it is the caller's, who awaits it)
        waiting.error = error
    waiting.is_run = True


def _settle(group: list[_PendingJob]) -> None:
    """Answer everybody with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_PendingJob]] = {}
    for waiting in group:
        by_loop.setdefault(waiting.loop, []).append(waiting)
    for loop, answered in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, and with it whoever waited
            loop.call_soon_threadsafe(_settle_all, answered)


def _settle_all(answered: list[_PendingJob]) -> None:
    for waiting in answered:
        waiting.settle()
