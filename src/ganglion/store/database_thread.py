"""A thread with one connection: callers await their job, and jobs that wait together are committed together.

Law: a job that returned was committed; one that fails takes no other one with it.

No lone writer waits for others to join it: while one group is being synced the next one gathers, so the
disk's own pace decides how large groups are.
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

_T = TypeVar("_T")

QUEUE_LIMIT: Final = 4096
"""Some seconds of a slow disk; beyond it a caller is better refused than left waiting."""
GROUP_LIMIT: Final = 256
"""The last of a group waits for all of it, and a transaction that fails is repeated job by job."""
IDLE_S: Final = 1.0
"""A connection that was idle for longer is tested before it gets a transaction."""
KEEP_S: Final = 15.0
"""How often an idle connection is tested: other stores see by it that this one is alive."""


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
    """Runs jobs on its own connection; a writer in transactions, a reader one by one."""

    def __init__(self, connect: Callable[[], DatabaseConnection], *, is_writer: bool) -> None:
        self._connect = connect
        self._is_writer = is_writer
        self._queue: deque[_PendingJob] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._connection: DatabaseConnection | None = None
        self._used_s = 0.0
        # A daemon: a store that was not closed must not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._work, name="ganglion-store", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """How many jobs wait."""
        return len(self._queue)

    async def run(self, job: Job[_T]) -> _T:
        """What the job returns, once it is committed; a job may be run again after its transaction failed."""
        loop = asyncio.get_running_loop()
        pending = _PendingJob(job, loop, loop.create_future())
        with self._changed:
            if self._is_closing:
                raise StoreUnavailable("The store is closed.")
            if len(self._queue) >= QUEUE_LIMIT:
                raise Overloaded(f"{QUEUE_LIMIT} requests are already waiting for the store.")
            self._queue.append(pending)
            self._changed.notify()
        result: _T = await pending.future
        return result

    async def close(self) -> None:
        """Run what waits, close the connection, end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while (group := self._next_group()) is not None:
            if not group:
                self._keep_alive()
                continue
            try:
                self._run(group)
            except Exception as error:  # noqa: BLE001 (the thread's outermost level: no caller may wait for ever)
                for pending in group:
                    pending.error = pending.error if pending.is_run else error
            _settle(group)
        self._disconnect()

    def _next_group(self) -> list[_PendingJob] | None:
        """What waits, at most a group; empty after a long idle time, None when there will be no more."""
        size = GROUP_LIMIT if self._is_writer else 1
        with self._changed:
            if not self._queue and not self._is_closing:
                self._changed.wait(KEEP_S)
            if not self._queue and self._is_closing:
                return None
            return [self._queue.popleft() for _ in range(min(size, len(self._queue)))]

    def _run(self, group: list[_PendingJob]) -> None:
        connection = self._ready_connection()
        try:
            if self._is_writer:
                self._commit(connection, group)
            else:
                _attempt(connection, group[0])
        finally:
            self._used_s = monotonic()
            try:
                connection.roll_back()
            except GanglionError:
                self._disconnect()

    def _commit(self, connection: DatabaseConnection, group: list[_PendingJob]) -> None:
        connection.begin()
        try:
            for pending in group:
                pending.result = pending.job(connection)
            connection.commit()
        except Exception as error:  # noqa: BLE001 (raised in the callers, who await it)
            connection.roll_back()
            if len(group) == 1:
                group[0].error, group[0].is_run = error, True
                return
            for pending in group:
                self._commit(connection, [pending])
            return
        for pending in group:
            pending.is_run = True

    def _ready_connection(self) -> DatabaseConnection:
        if self._connection is not None and monotonic() - self._used_s > IDLE_S:
            try:
                self._connection.ping()
            except GanglionError:
                self._disconnect()
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _keep_alive(self) -> None:
        if self._connection is not None:
            with suppress(GanglionError):
                self._ready_connection()
            self._used_s = monotonic()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(GanglionError):
                self._connection.close()
            self._connection = None


def _attempt(connection: DatabaseConnection, pending: _PendingJob) -> None:
    try:
        pending.result = pending.job(connection)
    except Exception as error:  # noqa: BLE001 (raised in the caller, who awaits it)
        pending.error = error
    pending.is_run = True


def _settle(group: list[_PendingJob]) -> None:
    """Answer all callers with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_PendingJob]] = {}
    for pending in group:
        by_loop.setdefault(pending.loop, []).append(pending)
    for loop, answered in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, and its callers with it
            loop.call_soon_threadsafe(_settle_all, answered)


def _settle_all(answered: list[_PendingJob]) -> None:
    for pending in answered:
        pending.settle()
