"""Places to run, for an engine that bounds its own concurrency: first the urgent, then the early."""

import asyncio
import heapq
from dataclasses import dataclass, field

from ganglion.core.errors import GanglionError, Overloaded


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """A place in the queue; `turn` is done once it is a place to run."""

    priority: int
    order: int
    turn: asyncio.Future[None] = field(compare=False)


class Slots:
    """At most `total` running and `queue_limit` waiting; whoever enters leaves, whatever happens between."""

    def __init__(self, total: int, queue_limit: int) -> None:
        self.total = total
        self.used = 0
        self._queue_limit = queue_limit
        self._queue: list[Ticket] = []
        self._order = 0

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._queue)

    def enter(self, priority: int) -> Ticket:
        """Take a free slot or a place in the queue; raises Overloaded when both are full."""
        self._order += 1
        ticket = Ticket(priority, self._order, asyncio.get_running_loop().create_future())
        if self.used < self.total:
            self.used += 1
            ticket.turn.set_result(None)
        elif self.queued < self._queue_limit:
            heapq.heappush(self._queue, ticket)
        else:
            raise Overloaded(
                f"All {self.total} slots are busy and {self.queued} requests wait.",
                extras={"queue_depth": self.queued},
            )
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give up the place in the queue, or hand the slot to the next in line."""
        if ticket in self._queue:
            self._queue.remove(ticket)
            heapq.heapify(self._queue)
        elif ticket.turn.done() and not ticket.turn.cancelled() and ticket.turn.exception() is None:
            self._pass_on()

    def refuse_waiting(self, error: GanglionError) -> None:
        """Tell everyone who waits that it is over."""
        waiting, self._queue = self._queue, []
        for ticket in waiting:
            if not ticket.turn.done():
                ticket.turn.set_exception(error)

    def _pass_on(self) -> None:
        while self._queue:
            turn = heapq.heappop(self._queue).turn
            if not turn.done():
                turn.set_result(None)
                return
        self.used -= 1
