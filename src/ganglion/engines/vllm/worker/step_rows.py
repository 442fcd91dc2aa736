"""Which rows of one forward pass are read or steered, and whose they are. Pure.

Law: a row is known by its request and its position; whatever asks for nothing has no part in a pass's plan,
and a pass in which nobody asks for anything has none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ganglion.engines.concepts.steering import variant_of
from ganglion.scheduler.spans import Spans, clipped

ARGUMENT: Final = "ganglion_residuals"
"""Under this name a request's wishes travel in the extra arguments of its sampling parameters."""


@dataclass(frozen=True, slots=True)
class ResidualWishes:
    """What one request wants of the residual stream."""

    key: int
    """The request, by a number that does not come back."""
    read: Spans = ()
    variant: str = ""
    """How it is steered, empty for not at all."""

    def as_argument(self, steering: Iterable[tuple[str, float, list[int] | None]]) -> dict[str, Any]:
        """The extra arguments that bring it to whoever computes."""
        wishes = {"key": self.key, "read": [list(span) for span in self.read], "steering": list(steering)}
        return {ARGUMENT: wishes}


def wishes_in(arguments: Mapping[str, Any] | None) -> ResidualWishes | None:
    """What the extra arguments of a request say, None where they ask for nothing."""
    found = (arguments or {}).get(ARGUMENT)
    if found is None:
        return None
    spans = tuple((start, end) for start, end in found["read"])
    return ResidualWishes(found["key"], spans, variant_of(found["steering"]))


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows of a pass that follow each other, and the position of the first one in its request."""

    key: int
    row: int
    position: int
    count: int


@dataclass(slots=True)
class StepRows:
    """The rows of a pass that somebody asked for."""

    read: list[RowSpan] = field(default_factory=list)
    steered: list[tuple[str, RowSpan]] = field(default_factory=list)
    """How they are steered, and which."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.read and not self.steered

    @property
    def read_rows(self) -> list[int]:
        """All rows that are read, in the order of `read`."""
        return [row for span in self.read for row in range(span.row, span.row + span.count)]


def rows_of(scheduled: Iterable[tuple[str, int, int]], followed: Mapping[str, ResidualWishes]) -> StepRows:
    """What is to be done in a pass over some requests: name, first position and count, by their rows."""
    found = StepRows()
    row = 0
    for name, position, count in scheduled:
        wishes = followed.get(name)
        if wishes is not None:
            for start, end in clipped(wishes.read, position, position + count):
                found.read.append(RowSpan(wishes.key, row + start - position, start, end - start))
            if wishes.variant:
                found.steered.append((wishes.variant, RowSpan(wishes.key, row, position, count)))
        row += count
    return found
