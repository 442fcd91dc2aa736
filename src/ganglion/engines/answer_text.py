"""What a client may see of an answer inside a worker, token by token: text up to a stop, or bare tokens."""

from collections.abc import Callable

from ganglion.core.events import Piece, Token
from ganglion.engines.supervision.ipc import Submit
from ganglion.text.detokenize import Detokenizer
from ganglion.text.stops import StopMatcher


class AnswerText:
    """One answer's bytes as text, and its stop strings."""

    def __init__(self, submit: Submit, is_special: Callable[[int], bool]) -> None:
        """`is_special` says whether a token is a control token."""
        self._is_special = is_special
        self._in_tokens = submit.in_tokens
        self._is_watched = bool(submit.stop.strings)
        self._detokenizer = Detokenizer()
        self._stops = StopMatcher(submit.stop.strings, is_shown=submit.stop.is_shown)

    @property
    def matched(self) -> str | None:
        """The stop string that was found."""
        return self._stops.matched

    def shown(self, token: Token) -> list[Piece]:
        """What may be shown now that a token is there."""
        is_special = self._is_special(token.id)
        if not self._in_tokens:
            return list(self._stops.feed(self._detokenizer.feed(token, is_special)))
        if self._is_watched:
            # Only watched: whoever reads tokens gets each of them as it comes, those of the stop as well.
            self._stops.feed(self._detokenizer.feed(token, is_special))
        return [Piece("", (token,))]

    def last(self, token: Token) -> list[Piece]:
        """What is shown of a token that ends the answer: nothing, unless somebody reads tokens."""
        return [Piece("", (token,))] if self._in_tokens else self.flushed()

    def flushed(self) -> list[Piece]:
        """What was held back, because the answer ended otherwise."""
        if self._in_tokens:
            return []
        last = self._stops.feed(self._detokenizer.flush())
        return [*last, *self._stops.flush()]
