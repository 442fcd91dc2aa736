"""Where pictures stand in a token list, and how far one step may go among them. Pure.

Law: a batch holds tokens or rows of embeddings and not both, so a step goes up to a border between them. What
is kept of a list ends outside a picture: half of one is not what anybody asked about, and where rows have
coordinates or see each other in both directions, its cells could not be continued.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Picture:
    """Positions of a prompt that are computed from rows of embeddings, half-open."""

    start: int
    end: int
    is_whole: bool = False
    """Whether one batch must hold all of it."""
    is_ready: bool = False
    """Whether its rows are there."""


Pictures = tuple[Picture, ...]
"""In the order of their places."""


def picture_at(pictures: Pictures, position: int) -> Picture | None:
    """The picture that a position lies in."""
    for picture in pictures:
        if picture.start <= position < picture.end:
            return picture
    return None


def stretch(pictures: Pictures, start: int, end: int) -> int:
    """How many positions from `start` on one step may compute, of those before `end`."""
    for picture in pictures:
        if picture.start <= start < picture.end:
            return min(picture.end, end) - start if picture.is_ready else 0
        if picture.start > start:
            return min(picture.start, end) - start
    return end - start


def outside(pictures: Pictures, length: int) -> int:
    """The most of a list that can be kept, of `length` positions at most."""
    for picture in pictures:
        if picture.start < length < picture.end:
            return picture.start
    return length


def pictures_in(tokens: Iterable[int]) -> Pictures:
    """The pictures of a token list whose layout is not at hand; those that touch are taken for one."""
    found: list[Picture] = []
    for position, token in enumerate(tokens):
        if token >= 0:
            continue
        if found and found[-1].end == position:
            found[-1].end = position + 1
        else:
            found.append(Picture(position, position + 1))
    return tuple(found)
