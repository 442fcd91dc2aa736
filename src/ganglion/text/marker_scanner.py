"""Finds the markers in an answer and says of everything else which kind it is.

Law: the scanned pieces joined are the pieces fed, character for character and token for token; only borders
move, and what is said of a character does not depend on how the text was split.

A tag opens only where an answer or the text after a block begins, whitespace aside: an answer that mentions
`<think>` stays an answer. A channel's opening is also obeyed in the middle of a block. An answer that was cut
ends before the marker that it was cut in: half a marker is part of no text.
"""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Literal

from ganglion.core.events import Piece
from ganglion.text.markers import (
    NAME_CHARACTER,
    WHITESPACE,
    CallTo,
    ChannelHeader,
    Kind,
    MarkerFamily,
    callee_of,
    kind_of,
)

_Undecided = Literal["undecided"]


@dataclass(frozen=True, slots=True)
class _Opening:
    """An opening marker with its header: how many characters it takes and what it opens."""

    length: int
    kind: Kind


def _opening_at(
    text: str, family: MarkerFamily, *, is_final: bool, names: Container[str] = ()
) -> _Opening | _Undecided | None:
    """Read an opening marker at the beginning of `text`, None where there is none; `names` can be called.

    When the answer ends inside a header (`is_final`) the marker counts as read: what is cut off is a
    channel's name, never an answer.
    """
    for opening in family.opening:
        if text.startswith(opening):
            if family.header is None:
                return _Opening(len(opening), "reasoning")
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
    text: str,
    start: int,
    family: MarkerFamily,
    header: ChannelHeader,
    *,
    is_final: bool,
    names: Container[str],
) -> _Opening | _Undecided | None:
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
    return _Opening(after, callee or kind_of(name[1]))


def _named_at(
    text: str, start: int, family: MarkerFamily, header: ChannelHeader, *, is_final: bool
) -> _Opening | _Undecided | None:
    """An opening whose header is the name alone, which ends where the next character cannot be part of it."""
    name = header.pattern.match(text, start)
    assert name is not None
    end = name.end()
    if end == len(text):
        return _Opening(end, kind_of(name[1])) if is_final else "undecided"
    if name[1]:
        is_too_long = bool(NAME_CHARACTER.match(text, end))
        return None if is_too_long else _Opening(end, kind_of(name[1]))
    # A block without a name is text; it begins with a line of its own, or is closed at once.
    if text[end] in "\r\n" or text.startswith(family.closing, end):
        return _Opening(end, kind_of(""))
    is_closing = undecided_suffix(text[end:], family.closing) == len(text) - end
    return "undecided" if is_closing and not is_final else None


Role = Literal["text", "reasoning", "text_marker", "reasoning_marker"] | CallTo
_Scanned = tuple[Role, Piece]


class MarkerScanner:
    """Scans one answer; `is_open` says that the prompt already opened a reasoning block.

    Channels may address the tools of `names`: the header's end comes as an empty piece of the call's role.
    """

    __slots__ = (
        "_anywhere",
        "_closing",
        "_enclosed_firsts",
        "_family",
        "_held",
        "_kind",
        "_mode",
        "_names",
        "_plain_firsts",
        "_tags",
    )

    def __init__(self, family: MarkerFamily, *, is_open: bool, names: Container[str] = ()) -> None:
        self._family = family
        self._names = names
        self._closing = re.compile("|".join(map(re.escape, family.closing)))
        self._anywhere = re.compile("|".join(map(re.escape, family.anywhere)) or r"(?!)")
        self._plain_firsts = frozenset(marker[0] for marker in family.anywhere)
        self._enclosed_firsts = self._plain_firsts.union(marker[0] for marker in family.closing)
        self._tags = frozenset(() if family.is_channel else family.opening + family.closing)
        self._held: list[Piece] = []
        self._kind: Kind = "reasoning" if is_open else "text"
        self._mode: Literal["border", "enclosed", "plain"] = "border"
        """At a border an opening may come; enclosed text has a closing marker to find, plain text none."""

    def feed(self, pieces: tuple[Piece, ...]) -> list[_Scanned]:
        """Take more of the answer; what may yet become a marker is held back."""
        scanned: list[_Scanned] = []
        for piece in pieces:
            if not self._held and self._is_plain(piece):
                scanned.append((self._kind, piece))
            else:
                self._held.append(piece)
                self._scan(scanned, is_final=False)
        return scanned

    def finish(self, *, is_cut: bool = False) -> list[_Scanned]:
        """Decide what is held, because the answer is complete, or because it was cut."""
        scanned: list[_Scanned] = []
        if is_cut:
            # What is undecided to the last began as a marker, and nobody will ever know more of it.
            is_reasoning = self._kind == "reasoning" or not self._family.is_channel
            role: Role = "reasoning_marker" if is_reasoning else "text_marker"
            scanned = [(role, piece) for piece in self._held]
            self._held.clear()
        self._scan(scanned, is_final=True)
        return scanned

    def is_shown(self, piece: Piece) -> bool:
        """Whether a piece that is no marker is part of the content.

        Control tokens are not, except a tag that was not obeyed: there the model wrote about the tag.
        """
        return not piece.is_special or piece.text in self._tags

    def _is_plain(self, piece: Piece) -> bool:
        if piece.is_special or self._mode == "border":
            return False
        firsts = self._plain_firsts if self._mode == "plain" else self._enclosed_firsts
        return firsts.isdisjoint(piece.text)

    def _scan(self, scanned: list[_Scanned], is_final: bool) -> None:
        while self._held:
            text = "".join([piece.text for piece in self._held])
            decided = self._decide(text, is_final) if text else (self._kind, 0)
            if decided is None:
                return
            self._take(scanned, *decided)
            if isinstance(self._kind, CallTo) and decided[0] == "text_marker":
                scanned.append((self._kind, Piece("", ())))

    def _decide(self, text: str, is_final: bool) -> tuple[Role, int] | None:
        """The role of the first characters held and their count, or None to wait for more."""
        match self._mode:
            case "border":
                return self._decide_border(text, is_final)
            case "enclosed":
                return self._decide_enclosed(text, is_final)
            case "plain":
                position, opening = self._later_opening(text, len(text), is_final)
                return ("text", position) if position else self._opened(opening)

    def _decide_border(self, text: str, is_final: bool) -> tuple[Role, int] | None:
        spaces = len(text) - len(text.lstrip(WHITESPACE))
        if spaces:
            return self._kind, spaces
        opening = _opening_at(text, self._family, is_final=is_final, names=self._names)
        if opening is not None:
            return self._opened(opening)
        first = next(piece for piece in self._held if piece.text)
        if not self.is_shown(first):
            return self._kind, len(first.text)
        self._mode = "enclosed" if self._kind == "reasoning" else "plain"
        return self._decide(text, is_final)

    def _decide_enclosed(self, text: str, is_final: bool) -> tuple[Role, int] | None:
        closing = self._closing.search(text)
        if closing:
            limit = closing.start()
        else:
            limit = len(text) - (0 if is_final else undecided_suffix(text, self._family.closing))
        position, opening = self._later_opening(text, limit, is_final)
        if position:
            return self._kind, position
        if opening is not None:
            return self._opened(opening)
        if closing is None:
            return None
        role: Role = "reasoning_marker" if self._kind == "reasoning" else "text_marker"
        self._kind, self._mode = "text", "border"
        return role, closing.end()

    def _opened(self, opening: _Opening | _Undecided | None) -> tuple[Role, int] | None:
        if not isinstance(opening, _Opening):
            return None
        self._kind, self._mode = opening.kind, "enclosed"
        return "reasoning_marker" if opening.kind == "reasoning" else "text_marker", opening.length

    def _later_opening(
        self, text: str, limit: int, is_final: bool
    ) -> tuple[int, _Opening | _Undecided | None]:
        """Where before `limit` a channel opens, or may be about to; else the limit."""
        for match in self._anywhere.finditer(text, 0, limit):
            position = match.start()
            opening = _opening_at(text[position:], self._family, is_final=is_final, names=self._names)
            if opening is not None:
                return position, opening
        undecided = 0 if is_final else undecided_suffix(text, self._family.anywhere)
        return min(limit, len(text) - undecided), None

    def _take(self, scanned: list[_Scanned], role: Role, count: int) -> None:
        """Move the first characters out; tokens without text go with the characters before them."""
        taken = 0
        for piece in self._held:
            length = len(piece.text)
            if length > count:
                break
            scanned.append((role, piece))
            count -= length
            taken += 1
        del self._held[:taken]
        if count:
            head = self._held[0]
            scanned.append((role, Piece(head.text[:count], (), head.is_special)))
            self._held[0] = Piece(head.text[count:], head.tokens, head.is_special)
