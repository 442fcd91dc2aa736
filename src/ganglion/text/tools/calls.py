"""Finds the calls in the text of an answer.

Law: every character fed is either text again, in its place and order, or part of a call; nothing is both,
nothing neither, except where an answer was cut: half a marker, and what follows a marker without having
become a call, is neither. What is found does not depend on how the text was split, and the time is linear in
it: no character is read by a second reader, and what is cut at a block's end is at most a slice.
"""

import re
from collections import deque
from dataclasses import dataclass

from ganglion.core.events import Piece, Token
from ganglion.core.request import Tool
from ganglion.text.marker_scanner import undecided_suffix
from ganglion.text.markers import WHITESPACE
from ganglion.text.tools.cursor import ArgumentText, CallEnded, CallNamed, Cursor, NotACall, Reading
from ganglion.text.tools.families import ToolFamily


class HeldText:
    """A queue of pieces that is taken from by characters."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, piece: Piece) -> None:
        """Hold one more."""
        self._pieces.append(piece)

    def text(self) -> str:
        """All characters held."""
        return "".join([piece.text for piece in self._pieces])

    def take(self, count: int) -> list[Piece]:
        """Let the first characters go; tokens go with their last one, or where they have none before it."""
        taken: list[Piece] = []
        while self._pieces and len(self._pieces[0].text) <= count:
            piece = self._pieces.popleft()
            count -= len(piece.text)
            taken.append(piece)
        if count:
            head = self._pieces[0]
            taken.append(Piece(head.text[:count], (), head.is_special))
            self._pieces[0] = Piece(head.text[count:], head.tokens, head.is_special)
        return taken

    def tokens(self, count: int) -> tuple[Token, ...]:
        """Let the first characters go and return their tokens."""
        return tuple([token for piece in self.take(count) for token in piece.tokens])


# Longer pieces are cut, because what follows a block is looked at anew from where the block ended.
SLICE_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class ArgumentDelta:
    """More of the arguments of the call that was named last, with the tokens that became it."""

    text: str
    tokens: tuple[Token, ...]


Found = Piece | CallNamed | ArgumentDelta | CallEnded


class CallScanner:
    """Scans the text of one answer; `finish` ends one run of text, after which another may begin."""

    __slots__ = (
        "_cursor",
        "_family",
        "_firsts",
        "_held",
        "_is_border",
        "_is_call",
        "_is_final",
        "_opening",
        "_reading",
        "_taken",
        "_tools",
    )

    def __init__(self, family: ToolFamily, tools: tuple[Tool, ...]) -> None:
        self._family = family
        self._tools = {tool.name: tool for tool in tools}
        self._opening = re.compile("|".join(map(re.escape, family.openings)) or r"(?!)")
        self._firsts = frozenset(marker[0] for marker in family.openings)
        self._held = HeldText()
        self._reading: Reading[None] | None = None
        self._cursor = Cursor(self._tools)
        self._taken = 0
        """How many characters of the cursor have left what is held."""
        self._is_final = False
        self._is_call = False
        """Whether what is being read began with a marker or has named a tool."""
        self._is_border = True
        """Whether only whitespace has come, so that a bare call may begin."""

    def feed(self, piece: Piece) -> list[Found]:
        """Take more text; what may yet become a call is held back."""
        is_idle = self._reading is None and not self._held and not self._is_border
        if is_idle and self._firsts.isdisjoint(piece.text):
            return [piece]
        if piece.is_special and piece.text not in self._family.markers:
            # A control token that is not of the family, an end of turn say, is no part of any call.
            return [] if self._reading is not None else [*self._flush(), piece]
        found: list[Found] = []
        for part in _sliced(piece):
            self._held.add(part)
            if self._reading is not None:
                self._cursor.feed(part.text)
            self._scan(found)
        return found

    def finish(self, *, is_cut: bool = False) -> list[Found]:
        """Decide what is held, because the text ends here, or because it was cut."""
        found: list[Found] = []
        self._is_final = self._cursor.is_final = True
        if is_cut:
            self._cut(found)
        self._scan(found)
        found += self._flush()
        self._is_border, self._is_final = True, False
        return found

    def is_shown(self, piece: Piece) -> bool:
        """Whether a piece that came back as text is part of the content."""
        return not piece.is_special or (self._family.is_shown and piece.text in self._family.markers)

    def _cut(self, found: list[Found]) -> None:
        """Say what is known of a call, and drop what was to become a marker or the rest of a call."""
        if self._reading is not None:
            if not self._is_call:
                return
            read: list[Found] = []
            self._read(read)
            found += [each for each in read if not isinstance(each, Piece)]
        self._flush()

    def _flush(self) -> list[Found]:
        return [*self._held.take(len(self._held.text()))]

    def _scan(self, found: list[Found]) -> None:
        while self._held or self._reading is not None:
            if self._reading is None:
                if not self._find(found):
                    return
            elif not self._read(found):
                return

    def _find(self, found: list[Found]) -> bool:
        """Let text go up to where a call may begin; whether a reader has begun."""
        text = self._held.text()
        if self._is_border:
            spaces = len(text) - len(text.lstrip(WHITESPACE))
            found += self._held.take(spaces)
            text = text[spaces:]
            if not text:
                return False
            self._is_border = False
            if text[0] in self._family.bare:
                self._begin("", text)
                return True
        match = self._opening.search(text)
        if match is None:
            found += self._held.take(len(text) - undecided_suffix(text, self._family.openings))
            return False
        found += self._held.take(match.start())
        self._begin(match[0], text[match.start() :])
        return True

    def _begin(self, opening: str, text: str) -> None:
        self._cursor = Cursor(self._tools)
        self._cursor.feed(text)
        self._cursor.advance(len(opening))
        self._cursor.is_final = self._is_final
        self._taken = 0
        self._is_call = bool(opening)
        self._reading = self._family.read(self._cursor, self._tools, opening)

    def _read(self, found: list[Found]) -> bool:
        """Let the reader read on; whether it came to an end."""
        assert self._reading is not None
        cursor = self._cursor
        try:
            next(self._reading)
        except StopIteration:
            self._acted(found)
            self._held.take(cursor.offset - self._taken)
        except NotACall:
            if cursor.is_calling:
                cursor.end()
            self._acted(found)
            found += self._held.take(cursor.offset - self._taken)
        else:
            self._acted(found)
            return False
        self._reading = None
        return True

    def _acted(self, found: list[Found]) -> None:
        """Say what the reader found; the tokens of what it read go with the arguments they became."""
        for offset, act in self._cursor.acts:
            tokens = self._held.tokens(offset - self._taken)
            self._taken = offset
            self._is_call = True
            found.append(ArgumentDelta(act.text, tokens) if isinstance(act, ArgumentText) else act)
        self._cursor.acts.clear()


def _sliced(piece: Piece) -> list[Piece]:
    text = piece.text
    if len(text) <= SLICE_CHARACTERS:
        return [piece]
    parts = [text[at : at + SLICE_CHARACTERS] for at in range(0, len(text), SLICE_CHARACTERS)]
    return [*[Piece(part, ()) for part in parts[:-1]], Piece(parts[-1], piece.tokens)]
