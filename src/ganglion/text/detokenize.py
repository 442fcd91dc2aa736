"""Token bytes to text that is safe to show, one token at a time.

Law: the text of a run of ordinary tokens is `bytes.decode("utf-8", "replace")` of their bytes joined,
wherever they are split, and every token comes out once, in order, in the piece that carries its last
character.
"""

import codecs

from ganglion.core.events import Piece, Token

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns the tokens of one sequence into pieces; a character that spans tokens waits for its last byte."""

    __slots__ = ("_decoder", "_waiting")

    def __init__(self) -> None:
        self._decoder = _UTF8("replace")
        self._waiting: tuple[Token, ...] = ()
        """Tokens whose last byte belongs to a character that is not complete yet."""

    def feed(self, token: Token, is_special: bool) -> tuple[Piece, ...]:
        """Take one token; a special one first flushes what waits and is then a piece of its own."""
        if is_special:
            return (*self.flush(), Piece(token.piece.decode("utf-8", "replace"), (token,), True))
        if not self._waiting:
            # Nearly every token is whole characters, and a strict decode is the cheapest way to know.
            try:
                return (Piece(token.piece.decode(), (token,)),)
            except UnicodeDecodeError:
                pass
        return self._feed_partial(token)

    def flush(self) -> tuple[Piece, ...]:
        """End the run: an incomplete character becomes U+FFFD."""
        if not self._waiting:
            return ()
        text, tokens = self._decoder.decode(b"", final=True), self._waiting
        self._decoder.reset()
        self._waiting = ()
        return (Piece(text, tokens),)

    def _feed_partial(self, token: Token) -> tuple[Piece, ...]:
        text = self._decoder.decode(token.piece)
        held_bytes, _ = self._decoder.getstate()
        if not held_bytes:
            tokens, self._waiting = (*self._waiting, token), ()
            return (Piece(text, tokens),)
        if not text:
            self._waiting = (*self._waiting, token)
            return ()
        # Text came out, so the character the earlier tokens waited for is decided; only this token waits now.
        tokens, self._waiting = self._waiting, (token,)
        return (Piece(text, tokens),)
