"""Pieces of an answer that wait until it is decided what they are."""

from collections import deque

from ganglion.core.events import Piece, Token


class Held:
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
