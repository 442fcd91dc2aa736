"""Separates an answer's reasoning from its text, as blocks of events.

Law: no character is lost or doubled, however the answer is split, apart from the markers themselves,
control tokens, and the whitespace trimmed by one rule: reasoning is stripped at both ends; text that
follows a marker loses its leading whitespace; whitespace before an opening marker goes with the marker.
Text without markers is left as it is.

A block opens at its first character, so an empty one is never seen. Tokens travel with the delta that
carries their last character; the tokens of what is dropped travel nowhere but are counted.
"""

from collections.abc import Sequence

from ganglion.core.events import Closed, Delta, Opened, Piece
from ganglion.text.markers import WHITESPACE, MarkerFamily, Shown
from ganglion.text.scanner import MarkerScanner, Role

Part = Opened | Delta | Closed


class PartSplitter:
    """Splits one answer into blocks; with no family, or with `keep_markers`, it is one block of text."""

    __slots__ = (
        "_index",
        "_is_trimming",
        "_keep_markers",
        "_leading",
        "_open",
        "_reasoning_tokens",
        "_scanner",
        "_trailing",
    )

    def __init__(self, family: MarkerFamily | None, *, is_open: bool, keep_markers: bool) -> None:
        self._scanner = None if family is None else MarkerScanner(family, is_open=is_open)
        self._keep_markers = keep_markers
        self._index = -1
        self._open: Shown | None = None
        self._is_trimming = is_open
        self._leading: list[Piece] = []
        """Whitespace at the start of the answer: text if text follows, nothing if a marker does."""
        self._trailing: list[Piece] = []
        """The end of the reasoning so far, from its last piece that ends in whitespace."""
        self._reasoning_tokens = 0

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens went into reasoning so far, its markers included."""
        return self._reasoning_tokens

    def feed(self, pieces: tuple[Piece, ...]) -> list[Part]:
        """Take more of the answer and say what became visible."""
        parts: list[Part] = []
        if self._scanner is None:
            for piece in pieces:
                if not piece.is_special:
                    self._show(parts, "text", (piece,))
        else:
            for role, piece in self._scanner.feed(pieces):
                self._take(parts, self._scanner, role, piece)
        return parts

    def finish(self) -> list[Part]:
        """Decide what was held and close the open block, because the answer is complete."""
        parts: list[Part] = []
        if self._scanner is not None:
            for role, piece in self._scanner.finish():
                self._take(parts, self._scanner, role, piece)
        if self._leading:
            self._show(parts, "text", self._leading)
        self._close(parts)
        return parts

    def _take(self, parts: list[Part], scanner: MarkerScanner, role: Role, piece: Piece) -> None:
        if role in ("reasoning", "reasoning_marker"):
            self._reasoning_tokens += len(piece.tokens)
        is_marker = role in ("text_marker", "reasoning_marker")
        if not is_marker and not scanner.is_shown(piece):
            return
        if self._keep_markers:
            self._show(parts, "text", (piece,))
        elif is_marker:
            self._close(parts)
            self._is_trimming = True
        elif role == "reasoning":
            self._take_reasoning(parts, piece)
        else:
            self._take_text(parts, piece)

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
        if self._open is not None:
            parts.append(Closed(self._index))
            self._open = None
