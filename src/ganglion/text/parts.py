"""Separates an answer's reasoning and its calls from its text, as blocks of events.

Law: no character is lost or doubled, however the answer is split, apart from the markers themselves,
control tokens, and the whitespace trimmed by one rule: reasoning is stripped at both ends; text that
follows a marker or a call loses its leading whitespace; whitespace before an opening marker goes with the
marker. Text without markers and calls is left as it is. Where one call is all that was allowed, what follows
it is dropped; so is half a marker where the answer was cut.

A block opens at its first character, so an empty one is never seen. Tokens travel with the delta that
carries their last character; the tokens of what is dropped travel nowhere but are counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ganglion.core.events import Closed, Delta, Kind, Opened, Piece, Token
from ganglion.core.request import Tool
from ganglion.text.marker_scanner import MarkerScanner, Role
from ganglion.text.markers import WHITESPACE, CallTo, MarkerFamily, Shown
from ganglion.text.tools.calls import ArgumentDelta, CallScanner, Found
from ganglion.text.tools.cursor import CallEnded, CallNamed
from ganglion.text.tools.custom import CustomText
from ganglion.text.tools.families import ToolFamily

Part = Opened | Delta | Closed


@dataclass(frozen=True, slots=True)
class CallRules:
    """The calls that an answer may make, the form its model writes them in, and the source of their ids."""

    family: ToolFamily
    tools: tuple[Tool, ...]
    new_call_id: Callable[[], str]
    is_parallel: bool = True


class PartSplitter:
    """Splits one answer into blocks; with no family, or with `keep_markers`, reasoning is left in the text.

    Without `calls` there are none.
    """

    __slots__ = (
        "_calls",
        "_custom",
        "_index",
        "_is_cut",
        "_is_trimming",
        "_keep_markers",
        "_leading",
        "_open",
        "_rules",
        "_scanner",
        "_shows_special",
        "_trailing",
        "has_calls",
        "reasoning_tokens",
    )

    def __init__(
        self,
        family: MarkerFamily | None,
        *,
        is_open: bool,
        keep_markers: bool,
        calls: CallRules | None = None,
        shows_special: bool = False,
    ) -> None:
        """`shows_special` leaves control tokens in the text that are no markers."""
        names = frozenset(tool.name for tool in calls.tools) if calls is not None else frozenset[str]()
        self._scanner = None if family is None else MarkerScanner(family, is_open=is_open, names=names)
        self._keep_markers = keep_markers
        self._shows_special = shows_special
        self._rules = calls
        self._calls = None if calls is None else CallScanner(calls.family, calls.tools)
        self._custom: CustomText | None = None
        """What the open call's arguments pass through, where a custom tool is called."""
        self.has_calls = False
        """Whether the answer holds a call so far."""
        self._index = -1
        self._open: Kind | None = None
        self._is_cut = False
        self._is_trimming = is_open
        self._leading: list[Piece] = []
        """Whitespace at the start of the answer: text if text follows, nothing if a marker does."""
        self._trailing: list[Piece] = []
        """The end of the reasoning so far, from its last piece that ends in whitespace."""
        self.reasoning_tokens = 0
        """So far, markers included."""

    def feed(self, pieces: tuple[Piece, ...]) -> list[Part]:
        """Take more of the answer and say what became visible."""
        parts: list[Part] = []
        if self._scanner is None:
            for piece in pieces:
                if self._shows_special or not piece.is_special:
                    self._show(parts, "text", (piece,))
        else:
            for role, piece in self._scanner.feed(pieces):
                self._take(parts, self._scanner, role, piece)
        return parts

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """Decide what was held and close the open block: the answer is complete, or it was cut."""
        parts: list[Part] = []
        self._is_cut = is_cut
        if self._scanner is not None:
            for role, piece in self._scanner.finish(is_cut=is_cut):
                self._take(parts, self._scanner, role, piece)
            self._end_text(parts, self._scanner)
        if self._leading:
            self._show(parts, "text", self._leading)
        self._close(parts)
        return parts

    def _take(self, parts: list[Part], scanner: MarkerScanner, role: Role, piece: Piece) -> None:
        if role in ("reasoning", "reasoning_marker"):
            self.reasoning_tokens += len(piece.tokens)
        if role == "text" and self._calls is not None:
            for found in self._calls.feed(piece):
                self._take_found(parts, scanner, self._calls, found)
            return
        self._end_text(parts, scanner)
        is_marker = role in ("text_marker", "reasoning_marker")
        if self._is_over or not (is_marker or self._shows_special or scanner.is_shown(piece)):
            return
        if isinstance(role, CallTo):
            self._take_channel(parts, role.name, piece)
        elif self._keep_markers:
            if self._open == "tool_call":
                self._close(parts)
            self._show(parts, "text", (piece,))
        elif is_marker:
            self._close(parts)
            self._is_trimming = True
        elif role == "reasoning":
            self._take_reasoning(parts, piece)
        else:
            self._take_text(parts, piece)

    @property
    def _is_over(self) -> bool:
        """Whether the one call that was allowed is complete."""
        is_single = self._rules is not None and not self._rules.is_parallel
        return is_single and self.has_calls and self._open != "tool_call"

    def _end_text(self, parts: list[Part], scanner: MarkerScanner) -> None:
        if self._calls is not None:
            for found in self._calls.finish(is_cut=self._is_cut):
                self._take_found(parts, scanner, self._calls, found)

    def _take_found(
        self, parts: list[Part], scanner: MarkerScanner, calls: CallScanner, found: Found
    ) -> None:
        if self._is_over:
            return
        match found:
            case CallNamed(name=name):
                self._open_call(parts, name)
            case ArgumentDelta(text=text, tokens=tokens):
                self._argue(parts, text, tokens)
            case CallEnded():
                self._close(parts)
            case Piece():
                if not (self._shows_special or scanner.is_shown(found) or calls.is_shown(found)):
                    pass
                elif self._keep_markers:
                    self._show(parts, "text", (found,))
                else:
                    self._take_text(parts, found)

    def _take_channel(self, parts: list[Part], name: str, piece: Piece) -> None:
        if self._open != "tool_call":
            self._open_call(parts, name)
        if piece.text:
            self._argue(parts, piece.text, piece.tokens)

    def _open_call(self, parts: list[Part], name: str) -> None:
        assert self._rules is not None
        self._close(parts)
        self._index += 1
        self._open = "tool_call"
        self.has_calls = self._is_trimming = True
        is_custom = any(tool.is_custom for tool in self._rules.tools if tool.name == name)
        self._custom = CustomText() if is_custom else None
        parts.append(Opened(self._index, "tool_call", self._rules.new_call_id(), name))

    def _argue(self, parts: list[Part], text: str, tokens: tuple[Token, ...]) -> None:
        given = text if self._custom is None else self._custom.feed(text)
        if given:
            parts.append(Delta(self._index, given, tokens))

    def _take_text(self, parts: list[Part], piece: Piece) -> None:
        if self._open is not None:
            parts.append(Delta(self._index, piece.text, piece.tokens))
            return
        visible = piece.text.lstrip(WHITESPACE)
        if self._is_trimming:
            if visible:
                self._show(parts, "text", (Piece(visible, piece.tokens),))
        elif visible:
            self._show(parts, "text", (*self._leading, piece))
            self._leading.clear()
        else:
            self._leading.append(piece)

    def _take_reasoning(self, parts: list[Part], piece: Piece) -> None:
        if self._open is None and not self._trailing:
            piece = Piece(piece.text.lstrip(WHITESPACE), piece.tokens)
            if not piece.text:
                return
        visible = piece.text.rstrip(WHITESPACE)
        if visible == piece.text and (visible or not self._trailing):
            self._show(parts, "reasoning", (*self._trailing, piece))
            self._trailing.clear()
            return
        # Held whole, not only its whitespace: when that is trimmed, its tokens still go with what is shown.
        if visible and self._trailing:
            self._show(parts, "reasoning", self._trailing)
            self._trailing.clear()
        self._trailing.append(piece)

    def _show(self, parts: list[Part], kind: Shown, pieces: Sequence[Piece]) -> None:
        text = "".join([piece.text for piece in pieces])
        if self._open is None:
            if not text:
                return
            self._index += 1
            self._open = kind
            parts.append(Opened(self._index, kind))
        parts.append(Delta(self._index, text, tuple([token for piece in pieces for token in piece.tokens])))

    def _close(self, parts: list[Part]) -> None:
        if self._trailing:
            last = self._trailing[0]
            visible = last.text.rstrip(WHITESPACE)
            if visible:
                self._show(parts, "reasoning", (Piece(visible, last.tokens),))
            self._trailing.clear()
        self._leading.clear()
        if self._open == "tool_call" and self._custom is not None and (given := self._custom.finish()):
            parts.append(Delta(self._index, given))
        if self._open is not None:
            parts.append(Closed(self._index))
            self._open = None
