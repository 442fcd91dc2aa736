"""What the desk and the front know of one request together: its place, and who answered.

The front reserves a place for each request, the desk answers some of them in another task of the same
process. The front names the place in a header of its own; whoever answers finds it in the task's context.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Final

from ganglion.gateway.admission import Admission

_PLACE: Final[ContextVar[Admission | None]] = ContextVar("place", default=None)
"""What the front reserved."""
_OWN: Final[ContextVar[Admission | None]] = ContextVar("own", default=None)
"""What the desk reserved by itself, for what the front lets by."""


class OpenPlaces:
    """The places of requests that are at the desk now, by the names that the front gave them."""

    def __init__(self) -> None:
        self._open: dict[bytes, Admission] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, place: Admission) -> bytes:
        """A name for a place, until it is closed."""
        name = b"%d" % next(self._numbers)
        self._open[name] = place
        return name

    def close(self, name: bytes) -> None:
        """The request is over."""
        self._open.pop(name, None)

    def find(self, name: bytes | None) -> Admission | None:
        """The place of that name; None where there is none."""
        return None if name is None else self._open.get(name)


@contextmanager
def at(place: Admission | None) -> Iterator[None]:
    """Let what runs inside, in this task and in those that it starts, count for a place."""
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


def begin_at(place: Admission) -> None:
    """From now on, what this task does counts for a place that the desk reserved."""
    _OWN.set(place)


def front_place() -> Admission | None:
    """What the front reserved for the request that runs now; None where it let it by."""
    return _PLACE.get()


def note_answer(model: str) -> None:
    """Say which model answers what runs now."""
    place = _OWN.get() or _PLACE.get()
    if place is not None:
        place.answered_by(model)
