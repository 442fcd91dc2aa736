"""Whether an opening marker stands at the beginning of a text that is still arriving."""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Literal

from ganglion.text.markers import NAME_CHARACTER, Header, Kind, MarkerFamily, callee_of, kind_of

Undecided = Literal["undecided"]


@dataclass(frozen=True, slots=True)
class Opening:
    """An opening marker with its header: how many characters it takes and what it opens."""

    length: int
    kind: Kind


def opening_at(
    text: str, family: MarkerFamily, *, is_final: bool, names: Container[str] = ()
) -> Opening | Undecided | None:
    """Read an opening marker at the beginning of `text`, None where there is none; `names` can be called.

    When the answer ends inside a header (`is_final`) the marker counts as read: what is cut off is a
    channel's name, never an answer.
    """
    for opening in family.opening:
        if text.startswith(opening):
            if family.header is None:
                return Opening(len(opening), "reasoning")
            return _channel_at(text, len(opening), family, family.header, is_final=is_final, names=names)
    if not is_final and any(opening.startswith(text) for opening in family.opening):
        return "undecided"
    return None


def undecided_suffix(text: str, markers: Iterable[str]) -> int:
    """The length of the longest suffix that begins one of the markers without completing it."""
    longest = 0
    for marker in markers:
        start = text.find(marker[0], max(0, len(text) - len(marker) + 1))
        while start >= 0:
            if marker.startswith(text[start:]):
                longest = max(longest, len(text) - start)
                break
            start = text.find(marker[0], start + 1)
    return longest


def _channel_at(
    text: str, start: int, family: MarkerFamily, header: Header, *, is_final: bool, names: Container[str]
) -> Opening | Undecided | None:
    if header.end is None:
        return _named_at(text, start, family, header, is_final=is_final)
    ends = (header.end, *family.closing)
    positions = [position for end in ends if (position := text.find(end, start)) >= 0]
    if positions:
        stop = min(positions)
        # A block that is closed before its header ended is empty; its closing marker is read after this one.
        after = stop + len(header.end) if text.startswith(header.end, stop) else stop
    else:
        stop = len(text) - undecided_suffix(text[start:], ends)
        after = len(text)
    name = header.pattern.fullmatch(text, start, stop)
    if name is None:
        return None
    if not positions and not is_final:
        return "undecided"
    # A header that was cut off calls nobody: the name may be half of one.
    callee = callee_of(text[:stop], names) if after > stop and positions else None
    return Opening(after, callee or kind_of(name[1]))


def _named_at(
    text: str, start: int, family: MarkerFamily, header: Header, *, is_final: bool
) -> Opening | Undecided | None:
    """An opening whose header is the name alone, which ends where the next character cannot be part of it."""
    name = header.pattern.match(text, start)
    assert name is not None
    end = name.end()
    if end == len(text):
        return Opening(end, kind_of(name[1])) if is_final else "undecided"
    if name[1]:
        is_too_long = bool(NAME_CHARACTER.match(text, end))
        return None if is_too_long else Opening(end, kind_of(name[1]))
    # A block without a name is text; it begins with a line of its own, or is closed at once.
    if text[end] in "\r\n" or text.startswith(family.closing, end):
        return Opening(end, kind_of(""))
    is_closing = undecided_suffix(text[end:], family.closing) == len(text) - end
    return "undecided" if is_closing and not is_final else None
