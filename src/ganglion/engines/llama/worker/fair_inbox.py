"""A fair queue between threads: anybody puts in, one thread takes out and waits while it is empty."""

import threading
from typing import Generic, TypeVar

from ganglion.core.fair_queue import FairQueue

T = TypeVar("T")


class FairInbox(Generic[T]):
    """What one thread works off, in turns between tenants."""

    def __init__(self, *, most: int, most_each: int, of: str) -> None:
        """The bounds are those of the queue."""
        self._queue: FairQueue[T] = FairQueue(most=most, most_each=most_each, of=of)
        self._arrived = threading.Condition()

    def put(self, tenant: str, item: T, cost: int = 1) -> None:
        """Leave an item; raises Overloaded where too much waits."""
        with self._arrived:
            self._queue.put(tenant, item, cost)
            self._arrived.notify()

    def get(self) -> T:
        """The item whose turn it is, once there is one."""
        with self._arrived:
            while (waiting := self._queue.next()) is None:
                self._arrived.wait()
            self._queue.take(waiting)
            return waiting.item

    def get_now(self) -> T | None:
        """The item whose turn it is, if there is one."""
        with self._arrived:
            waiting = self._queue.next()
            if waiting is None:
                return None
            self._queue.take(waiting)
            return waiting.item
