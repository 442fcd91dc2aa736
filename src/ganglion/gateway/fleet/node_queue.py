"""The queue of requests that wait for a node at its `max_in_flight`, in turn by tenant.

Laws: a request waits for some nodes, for a bounded time, among a bounded number. Tenants take turns, and one
that fills the queue loses its own newest request to another tenant's. A slot that becomes free goes to a
request that waits for it, before any that comes later; a request that leaves frees its slot. Nobody polls.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ganglion.core.errors import Overloaded

_QUEUE_REQUESTS: Final = 1024
_QUEUE_S: Final = 30.0
_RETRY_AFTER_S: Final = 5
"""For requests that waited in vain: coming back at once would be waiting again."""


class QueuedRequest:
    """One request that waits."""

    __slots__ = ("is_queued", "node", "nodes", "tenant", "until_s", "woken")

    def __init__(self, tenant: str, until_s: float) -> None:
        self.tenant = tenant
        self.until_s = until_s
        self.nodes: frozenset[str] = frozenset()
        """The nodes that could take it."""
        self.node: str | None = None
        """The node whose free slot was handed to it."""
        self.woken: asyncio.Future[None] | None = None
        self.is_queued = False


class NodeQueue:
    """The queue of one process."""

    def __init__(self, *, max_requests: int = _QUEUE_REQUESTS, max_wait_s: float = _QUEUE_S) -> None:
        self.max_requests = max_requests
        self.max_wait_s = max_wait_s
        self.on_free: Callable[[str], None] = lambda node: None
        """Called with the node of a slot that was handed over and is free again."""
        self._waiting: dict[str, deque[QueuedRequest]] = {}
        """By tenant, the next one first; each tenant's in the order in which they came."""
        self.count = 0
        """How many wait; a plain attribute, since it is read for every request."""

    def __len__(self) -> int:
        return self.count

    def waiter(self, tenant: str) -> QueuedRequest:
        """A request whose time to wait begins now."""
        return QueuedRequest(tenant, asyncio.get_running_loop().time() + self.max_wait_s)

    async def room(self, waiter: QueuedRequest, nodes: frozenset[str]) -> None:
        """Return when it is worth looking again; raises Overloaded where too many wait, or it was too long.

        A slot that was handed over is free at the moment in which this returns: take it before anything else
        is awaited.
        """
        self._enqueue(waiter, nodes)
        waiter.woken = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(waiter.until_s):
                await waiter.woken
        except TimeoutError:
            self.leave(waiter)
            raise _too_long(self.max_wait_s) from None
        except BaseException:
            self.leave(waiter)
            raise
        node, waiter.node = waiter.node, None
        if node is not None:
            self.on_free(node)

    def leave(self, waiter: QueuedRequest) -> None:
        """Wait no longer; a slot that was handed to it goes to the next one."""
        self._dequeue(waiter)
        if waiter.woken is not None:
            waiter.woken.cancel()
        node, waiter.node = waiter.node, None
        if node is not None and not self.hand_over(node):
            self.on_free(node)

    def hand_over(self, node: str) -> bool:
        """Hand a node's free slot to the next request that waits for it; False where none does."""
        for tenant, waiting in self._waiting.items():
            for waiter in waiting:
                if node in waiter.nodes and waiter.woken is not None and not waiter.woken.done():
                    self._dequeue(waiter)
                    if tenant in self._waiting:  # and now it is the other tenants' turn
                        self._waiting[tenant] = self._waiting.pop(tenant)
                    waiter.node = node
                    waiter.woken.set_result(None)
                    return True
        return False

    def look_again(self) -> None:
        """Wake all: the fleet has changed, and they may find another node."""
        for waiting in self._waiting.values():
            for waiter in waiting:
                if waiter.woken is not None and not waiter.woken.done():
                    waiter.woken.set_result(None)

    def _enqueue(self, waiter: QueuedRequest, nodes: frozenset[str]) -> None:
        waiter.nodes = nodes
        if waiter.is_queued:
            return
        if self.count >= self.max_requests:
            self._make_room_for(waiter.tenant)
        self._waiting.setdefault(waiter.tenant, deque()).append(waiter)
        waiter.is_queued = True
        self.count += 1

    def _make_room_for(self, tenant: str) -> None:
        """Refuse the newest request of the tenant with the most; raises Overloaded where that is this one."""
        most = max(self._waiting.values(), key=len, default=deque[QueuedRequest]())
        if len(most) <= len(self._waiting.get(tenant, ())) + 1:
            raise _too_many(self.count)
        newest = most[-1]
        self._dequeue(newest)
        if newest.woken is not None and not newest.woken.done():
            newest.woken.set_exception(_too_many(self.count + 1))

    def _dequeue(self, waiter: QueuedRequest) -> None:
        if not waiter.is_queued:
            return
        waiter.is_queued = False
        self.count -= 1
        waiting = self._waiting[waiter.tenant]
        waiting.remove(waiter)
        if not waiting:
            del self._waiting[waiter.tenant]


def _too_long(waited_s: float) -> Overloaded:
    error = Overloaded(f"No node that holds the model had room for one more request within {waited_s:g} s.")
    error.retry_after_s = _RETRY_AFTER_S
    return error


def _too_many(count: int) -> Overloaded:
    error = Overloaded(
        f"{count} requests wait for nodes that are full, and no more may.", extras={"queue_depth": count}
    )
    error.retry_after_s = _RETRY_AFTER_S
    return error
