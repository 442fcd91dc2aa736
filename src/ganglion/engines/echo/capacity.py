"""The slots that an echo's requests wait for, and a memory of prefixes like a KV cache's."""

import asyncio
import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from ganglion.core.errors import GanglionError, Overloaded
from ganglion.scheduler.prefix import common_length


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """A position in the queue; `turn` is done once there is a slot."""

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
        """Take a free slot or wait in the queue; raises Overloaded when both are full."""
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
        """Leave the queue, or hand the slot to the next in it."""
        if ticket in self._queue:
            self._queue.remove(ticket)
            heapq.heapify(self._queue)
        elif ticket.turn.done() and not ticket.turn.cancelled() and ticket.turn.exception() is None:
            self._pass_on()

    def refuse_waiting(self, error: GanglionError) -> None:
        """Fail everyone who waits."""
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


_MAX_TOKENS: Final = 1 << 20
"""Of all lists together; the oldest make room, as cached KV would."""


class PrefixMemory:
    """Lists by the salt they were run under; no salt finds what belongs to another."""

    def __init__(self, max_tokens: int = _MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._sorted: dict[str, list[tuple[int, ...]]] = {}
        self._by_age: OrderedDict[tuple[str, tuple[int, ...]], None] = OrderedDict()

    def __len__(self) -> int:
        return self._tokens

    def common(self, salt: str, tokens: tuple[int, ...]) -> int:
        """How many leading tokens some list under this salt shares."""
        # What shares the most with a list is its neighbour in sorted order.
        lists = self._sorted.get(salt, [])
        index = bisect_left(lists, tokens)
        return max((common_length(each, tokens) for each in lists[max(index - 1, 0) : index + 1]), default=0)

    def keep(self, salt: str, tokens: tuple[int, ...]) -> None:
        """Remember a list in index of what it goes on from."""
        if not tokens or len(tokens) > self._max_tokens or self.common(salt, tokens) == len(tokens):
            return
        lists = self._sorted.setdefault(salt, [])
        index = bisect_left(lists, tokens)
        if index and lists[index - 1] == tokens[: len(lists[index - 1])]:
            self._drop(salt, lists[index - 1])
        insort(self._sorted.setdefault(salt, []), tokens)
        self._by_age[salt, tokens] = None
        self._tokens += len(tokens)
        while self._tokens > self._max_tokens:
            self._drop(*next(iter(self._by_age)))

    def clear(self) -> None:
        """Forget everything."""
        self._sorted.clear()
        self._by_age.clear()
        self._tokens = 0

    def _drop(self, salt: str, tokens: tuple[int, ...]) -> None:
        lists = self._sorted[salt]
        del lists[bisect_left(lists, tokens)]
        if not lists:
            del self._sorted[salt]
        del self._by_age[salt, tokens]
        self._tokens -= len(tokens)
