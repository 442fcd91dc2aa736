"""Which positions of a session somebody asked about. Pure."""

from dataclasses import replace

from ganglion.core.errors import InvalidValue
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


def check_reach(name: str, ranges: Ranges, reach: int) -> None:
    """Whether ranges lie where the session may come to; raises InvalidValue, as `/v1/score` does."""
    for place, (start, end) in enumerate(ranges):
        if max(start, end or 0) > reach:
            raise InvalidValue(
                f"The range [{start}, {'open' if end is None else end}) reaches beyond the {reach} tokens "
                "that the session can have after this call.",
                param=f"{name}[{place}]",
                hint="An end of 2^32-1 is open.",
            )


def _holds(ranges: Ranges, position: int) -> bool:
    return any(start <= position and (end is None or position < end) for start, end in ranges)
