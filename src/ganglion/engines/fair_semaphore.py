"""Turns in an event loop: so much at once, so much of it for one tenant, and a fair queue for the rest.

Law: a turn that was given is given back exactly once, and a wait that was given up leaves nothing behind.
Nobody who could have a turn is overtaken by somebody who comes later in the queue's order.
"""

import asyncio
from dataclasses import dataclass

from ganglion.core.fair_queue import FairQueue, Waiting


@dataclass(slots=True, eq=False)
class FairPermit:
    """A turn that somebody has; `close` gives it back, and does nothing when called again."""

    _turns: "FairSemaphore | None"
    tenant: str
    size: int

    def close(self) -> None:
        """Give it back."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.give_back(self.tenant, self.size)

    def __enter__(self) -> "FairPermit":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class PermitWaiter:
    """Somebody who waits for so much."""

    size: int
    turn: asyncio.Future[None]


class FairSemaphore:
    """Hands out at most `room` at once, and `each` to one tenant; more of one only to whoever has nothing."""

    def __init__(self, room: int, each: int, queue: FairQueue[PermitWaiter]) -> None:
        self.room = room
        self._each = each
        self._queue = queue
        self._used = 0
        self._held: dict[str, int] = {}

    @property
    def used(self) -> int:
        """How much is handed out."""
        return self._used

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    def take(self, tenant: str, size: int = 1, *, cost: int | None = None) -> FairPermit | None:
        """A turn that can be had without waiting; `cost` is what it counts in the queue, if not its size."""
        if not self._has_room(tenant, size) or any(map(self._is_within_share, self._queue.heads())):
            return None
        self._queue.pass_by(tenant, size if cost is None else cost)
        self._hand_out(tenant, size)
        return FairPermit(self, tenant, size)

    async def enter(self, tenant: str, size: int = 1, *, cost: int | None = None) -> FairPermit:
        """A turn, once it is there; raises Overloaded where too much waits already."""
        turn = self.take(tenant, size, cost=cost)
        if turn is not None:
            return turn
        waiter = PermitWaiter(size, asyncio.get_running_loop().create_future())
        waiting = self._queue.put(tenant, waiter, size if cost is None else cost)
        try:
            await waiter.turn
        except BaseException:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self.give_back(tenant, size)
            else:
                self._queue.remove(waiting)
                self._admit()
            raise
        return FairPermit(self, tenant, size)

    def share(self, each: int) -> None:
        """Give each tenant so much from now on."""
        self._each = each
        self._admit()

    def give_back(self, tenant: str, size: int) -> None:
        """Take a turn back; called by the turn itself."""
        self._used -= size
        self._held[tenant] -= size
        if not self._held[tenant]:
            del self._held[tenant]
        self._admit()

    def _admit(self) -> None:
        while (waiting := self._next()) is not None:
            self._queue.take(waiting)
            if not waiting.item.turn.done():
                self._hand_out(waiting.tenant, waiting.item.size)
                waiting.item.turn.set_result(None)

    def _next(self) -> Waiting[PermitWaiter] | None:
        for waiting in self._queue.heads():
            if self._is_within_share(waiting):
                # Where it does not fit yet, what comes later waits too: else a large one would wait for ever.
                return waiting if self._has_room(waiting.tenant, waiting.item.size) else None
        return None

    def _has_room(self, tenant: str, size: int) -> bool:
        held = self._held.get(tenant, 0)
        return (not self._used or self._used + size <= self.room) and (not held or held + size <= self._each)

    def _is_within_share(self, waiting: Waiting[PermitWaiter]) -> bool:
        held = self._held.get(waiting.tenant, 0)
        return not held or held + waiting.item.size <= self._each

    def _hand_out(self, tenant: str, size: int) -> None:
        self._used += size
        self._held[tenant] = self._held.get(tenant, 0) + size
