"""Where the text that ended an answer begins among its tokens. Pure."""

from ganglion.core.events import Token


class StopText:
    """Follows the tokens of one answer, where it may be ended by a text."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._is_asked = bool(strings)
        self._pieces: list[tuple[int, bytes]] = []
        """Positions and what stands there."""

    def feed(self, token: Token) -> None:
        """One more token."""
        if self._is_asked:
            self._pieces.append((token.position, token.piece))

    def start(self, matched: str | None) -> int | None:
        """The position of the first token that has a part of it; None where no text ended the answer.

        The first place where it stands is meant: there it was complete for the first time.
        """
        if matched is None:
            return None
        at = b"".join(piece for _, piece in self._pieces).find(matched.encode("utf-8", "surrogatepass"))
        for position, piece in self._pieces if at >= 0 else ():
            at -= len(piece)
            if at < 0:
                return position
        return None
