"""Which positions of a session somebody asked about. Pure."""

from dataclasses import replace

from ganglion.core.events import Token
from ganglion.core.request import Ranges


class Wanted:
    """Keeps what was asked for and takes away the rest: engines report logprobs of all or none."""

    def __init__(self, logprobs: Ranges) -> None:
        self._logprobs = logprobs

    def only(self, token: Token) -> Token:
        """The token without what nobody asked of its position."""
        if token.logprob is None or _holds(self._logprobs, token.position):
            return token
        return replace(token, logprob=None, top=())


def _holds(ranges: Ranges, position: int) -> bool:
    return any(start <= position and (end is None or position < end) for start, end in ranges)
