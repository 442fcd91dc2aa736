"""A thread that works off a fair queue: anybody puts items in, and tenants take turns."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ganglion.core.fair_queue import FairQueue

_T = TypeVar("_T")


class FairThread(Generic[_T]):
    """Started by the first item; `work` runs on it and takes items out for ever."""

    def __init__(self, work: Callable[[], None], *, most: int, most_each: int, of: str) -> None:
        """The bounds are those of the queue."""
        self._queue: FairQueue[_T] = FairQueue(most=most, most_each=most_each, of=of)
        self._arrived = threading.Condition()
        self._work = work
        self.thread: threading.Thread | None = None

    def put(self, tenant: str, item: _T, cost: int = 1) -> None:
        """Queue an item; raises Overloaded where too much waits."""
        with self._arrived:
            self._queue.put(tenant, item, cost)
            self._arrived.notify()
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, daemon=True)
            self.thread.start()

    def get(self) -> _T:
        """The item whose turn it is, once there is one."""
        with self._arrived:
            while (waiting := self._queue.next()) is None:
                self._arrived.wait()
            self._queue.take(waiting)
            return waiting.item

    def get_now(self) -> _T | None:
        """The item whose turn it is, if there is one."""
        with self._arrived:
            waiting = self._queue.next()
            if waiting is None:
                return None
            self._queue.take(waiting)
            return waiting.item
