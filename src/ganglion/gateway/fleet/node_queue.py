"""Requests that wait until a node has room for one more, in turn by tenant.

Laws: who waits does so for some nodes, for a bounded time, among a bounded number. Tenants take turns, and
one that fills the queue loses its own newest request to another tenant's. A place that becomes free goes to
whoever waits for it, before anybody who comes later; whoever leaves frees theirs. Nobody polls.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ganglion.core.errors import Overloaded

QUEUE_REQUESTS: Final = 1024
QUEUE_S: Final = 30.0
RETRY_AFTER_S: Final = 5
"""For those who waited in vain: coming back at once would be waiting again."""


class QueuedRequest:
    """One request that waits, for as long as it does."""

    __slots__ = ("is_listed", "node", "nodes", "tenant", "until_s", "woken")

    def __init__(self, tenant: str, until_s: float) -> None:
        self.tenant = tenant
        self.until_s = until_s
        self.nodes: frozenset[str] = frozenset()
        """Those that would take it."""
        self.node: str | None = None
        """Whose free place is its own."""
        self.woken: asyncio.Future[None] | None = None
        self.is_listed = False


class NodeQueue:
    """The queue of one process."""

    def __init__(self, *, max_requests: int = QUEUE_REQUESTS, max_wait_s: float = QUEUE_S) -> None:
        self.max_requests = max_requests
        self.max_wait_s = max_wait_s
        self.on_free: Callable[[str], None] = lambda node: None
        """Is told of a place that was handed over, and is nobody's now."""
        self._waiting: dict[str, deque[QueuedRequest]] = {}
        """By tenant, whose turn it is first; each tenant's in the order in which they came."""
        self.count = 0
        """How many wait, for those who look at every request."""

    def __len__(self) -> int:
        return self.count

    def waiter(self, tenant: str) -> QueuedRequest:
        """Somebody whose time to wait begins now."""
        return QueuedRequest(tenant, asyncio.get_running_loop().time() + self.max_wait_s)

    async def room(self, waiter: QueuedRequest, nodes: frozenset[str]) -> None:
        """Return when it is worth looking again; raises Overloaded where too many wait, or it was too long.

        A place that was handed over is free at the moment in which this returns: whoever wants it takes it
        before anything else is awaited.
        """
        self._list(waiter, nodes)
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
        """Wait no longer; a place that was its own goes to the next one."""
        self._unlist(waiter)
        if waiter.woken is not None:
            waiter.woken.cancel()
        node, waiter.node = waiter.node, None
        if node is not None and not self.hand_over(node):
            self.on_free(node)

    def hand_over(self, node: str) -> bool:
        """Give a node's free place to whoever is next to wait for it; false where nobody does."""
        for tenant, waiting in self._waiting.items():
            for waiter in waiting:
                if node in waiter.nodes and waiter.woken is not None and not waiter.woken.done():
                    self._unlist(waiter)
                    if tenant in self._waiting:  # and now it is everybody else's turn
                        self._waiting[tenant] = self._waiting.pop(tenant)
                    waiter.node = node
                    waiter.woken.set_result(None)
                    return True
        return False

    def look_again(self) -> None:
        """The fleet has changed: who waits may find another node."""
        for waiting in self._waiting.values():
            for waiter in waiting:
                if waiter.woken is not None and not waiter.woken.done():
                    waiter.woken.set_result(None)

    def _list(self, waiter: QueuedRequest, nodes: frozenset[str]) -> None:
        waiter.nodes = nodes
        if waiter.is_listed:
            return
        if self.count >= self.max_requests:
            self._make_room_for(waiter.tenant)
        self._waiting.setdefault(waiter.tenant, deque()).append(waiter)
        waiter.is_listed = True
        self.count += 1

    def _make_room_for(self, tenant: str) -> None:
        """Let go of the newest request of whoever waits most; raises Overloaded where that is this one."""
        most = max(self._waiting.values(), key=len, default=deque[QueuedRequest]())
        if len(most) <= len(self._waiting.get(tenant, ())) + 1:
            raise _too_many(self.count)
        newest = most[-1]
        self._unlist(newest)
        if newest.woken is not None and not newest.woken.done():
            newest.woken.set_exception(_too_many(self.count + 1))

    def _unlist(self, waiter: QueuedRequest) -> None:
        if not waiter.is_listed:
            return
        waiter.is_listed = False
        self.count -= 1
        waiting = self._waiting[waiter.tenant]
        waiting.remove(waiter)
        if not waiting:
            del self._waiting[waiter.tenant]


def _too_long(waited_s: float) -> Overloaded:
    error = Overloaded(f"No node that holds the model had room for one more request within {waited_s:g} s.")
    error.retry_after_s = RETRY_AFTER_S
    return error


def _too_many(count: int) -> Overloaded:
    error = Overloaded(
        f"{count} requests wait for nodes that are full, and no more may.", extras={"queue_depth": count}
    )
    error.retry_after_s = RETRY_AFTER_S
    return error
