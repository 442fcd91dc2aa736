"""A queue that is fair between tenants: who waits, and whose turn is next.

Law: a tenant's own items stay in order, and one that comes anew waits for at most one item of each other
tenant; one that just had more than the others waits until they have had as much. What waits is bounded over
all tenants and for each of them, and what is refused or taken out leaves nothing behind.

The order is start-time fair queueing: an item starts where its tenant's last one ended, or now if that is
over, and the earliest start is next.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ganglion.core.errors import Overloaded

_T = TypeVar("_T")

REMEMBERED: Final = 1024
"""Tenants whose last turn is kept in mind; beyond, those whose turn is over are forgotten."""


@dataclass(slots=True, eq=False)
class Waiting(Generic[_T]):
    """An item, whose it is, and what it costs."""

    tenant: str
    item: _T
    cost: int = 1


@dataclass(slots=True)
class _Line(Generic[_T]):
    """The waiting entries of one tenant, and the position of the first."""

    start: float
    cost: int = 0
    items: deque[Waiting[_T]] = field(default_factory=deque)


class FairQueue(Generic[_T]):
    """Items of many tenants; costs are in one unit, such as bytes, and bound what waits."""

    def __init__(self, *, most: int, most_each: int, of: str) -> None:
        """`of` says in the plural what waits, for those who are refused."""
        self._most = most
        self._most_each = most_each
        self._of = of
        self._lines: dict[str, _Line[_T]] = {}
        self._ends: dict[str, float] = {}
        """Where the last turn of a tenant ended."""
        self._now = 0.0
        self._cost = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def cost(self) -> int:
        """The cost of everything that waits."""
        return self._cost

    def put(self, tenant: str, item: _T, cost: int = 1) -> Waiting[_T]:
        """Let an item wait; raises Overloaded where the tenant, or all of them, have too much waiting."""
        line = self._lines.get(tenant)
        own = 0 if line is None else line.cost
        if own + cost > self._most_each or self._cost + cost > self._most:
            raise Overloaded(
                f"Too many {self._of} wait for their turn.",
                hint="Retry in a moment.",
                extras={"queue_depth": self._length},
            )
        if line is None:
            line = self._lines[tenant] = _Line(self._start(tenant))
        waiting = Waiting(tenant, item, cost)
        line.items.append(waiting)
        line.cost += cost
        self._cost += cost
        self._length += 1
        return waiting

    def heads(self) -> Iterator[Waiting[_T]]:
        """The first item of each tenant, in the order of their turns; for one look at an unchanged queue."""
        for line in sorted(self._lines.values(), key=lambda line: line.start):
            yield line.items[0]

    def next(self) -> Waiting[_T] | None:
        """Whose turn it is."""
        if not self._lines:
            return None
        return min(self._lines.values(), key=lambda line: line.start).items[0]

    def take(self, waiting: Waiting[_T]) -> None:
        """Give a tenant's first item its turn."""
        line = self._lines[waiting.tenant]
        assert line.items[0] is waiting
        self._now = max(self._now, line.start)
        self._leave(line, waiting)
        end = line.start + waiting.cost
        self._ends[waiting.tenant] = end
        if line.items:
            line.start = end
            # The last in order among equals: who was served gives way.
            self._lines[waiting.tenant] = self._lines.pop(waiting.tenant)
        self._forget()

    def pass_by(self, tenant: str, cost: int = 1) -> None:
        """Count a turn of somebody who did not have to wait for it."""
        start = self._start(tenant)
        self._now = max(self._now, start)
        self._ends[tenant] = start + cost
        self._forget()

    def remove(self, waiting: Waiting[_T]) -> None:
        """Take an item out that does not want its turn any more; one that is not here is nothing."""
        line = self._lines.get(waiting.tenant)
        if line is not None and waiting in line.items:
            self._leave(line, waiting)

    def _leave(self, line: _Line[_T], waiting: Waiting[_T]) -> None:
        line.items.remove(waiting)
        line.cost -= waiting.cost
        self._cost -= waiting.cost
        self._length -= 1
        if not line.items:
            del self._lines[waiting.tenant]

    def _start(self, tenant: str) -> float:
        return max(self._ends.get(tenant, 0.0), self._now)

    def _forget(self) -> None:
        if len(self._ends) > REMEMBERED:
            self._ends = {tenant: end for tenant, end in self._ends.items() if end > self._now}
        while len(self._ends) > REMEMBERED:
            del self._ends[next(iter(self._ends))]
