"""DRY: what would prolong a repetition becomes the less likely the longer that already is.

Written here and not taken from the library: its own reads the whole vocabulary once for each request, on the
thread that all sequences wait for. Law: a step costs a bounded number of passes over a bounded window.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ganglion.core.samplers import Samplers

MAX_WINDOW: Final = 8192
"""Tokens that are searched for repetitions, whatever is asked."""
MAX_MATCH: Final = 50
"""The longest repetition that is told from a longer one: its penalty is prohibitive long before."""
MAX_PENALTY: Final = 1e6
"""Logits stay numbers."""


class DryPenalty:
    """One sequence's memory of what it said, and the penalties that follow from it."""

    def __init__(self, samplers: Samplers, prompt: Sequence[int], piece: Callable[[int], bytes]) -> None:
        """`piece` gives a token's bytes."""
        asked = samplers.dry_penalty_last_n
        self._window = MAX_WINDOW if asked < 0 else min(asked, MAX_WINDOW)
        self._samplers = samplers
        self._piece = piece
        self._breakers = tuple(breaker.encode() for breaker in samplers.dry_sequence_breakers)
        self._tokens = np.zeros(2 * self._window, np.int64)
        """The last tokens, moved to the front when they reach the end."""
        kept = prompt[-self._window :]
        self._length = len(kept)
        self._tokens[: self._length] = kept

    def remember(self, token: int) -> None:
        """Take what was said."""
        if self._length == len(self._tokens):
            self._tokens[: self._window] = self._tokens[-self._window :]
            self._length = self._window
        self._tokens[self._length] = token
        self._length += 1

    def apply(self, logits: npt.NDArray[np.float32]) -> None:
        """Lower what would prolong a repetition; changes the row in place."""
        window = self._tokens[max(self._length - self._window, 0) : self._length]
        longest = self._unbroken(window)
        if longest < self._samplers.dry_allowed_length or len(window) < 2:
            return
        lengths = _match_lengths(window, longest)
        is_long = lengths >= max(self._samplers.dry_allowed_length, 1)
        if not is_long.any():
            return
        order = np.argsort(lengths[is_long], kind="stable")
        exponents = (lengths[is_long][order] - self._samplers.dry_allowed_length).astype(np.float64)
        penalties = np.zeros(len(logits), np.float32)
        # Of several places before the same token the longest is written last, and stays.
        penalties[window[1:][is_long][order]] = np.minimum(
            self._samplers.dry_multiplier * np.power(self._samplers.dry_base, exponents), MAX_PENALTY
        )
        logits -= penalties

    def _unbroken(self, window: npt.NDArray[np.int64]) -> int:
        """How many of the last tokens stand behind the last breaker."""
        pieces = [self._piece(token) for token in window[-MAX_MATCH:].tolist()]
        text = b"".join(pieces)
        end = max((at + len(each) for each in self._breakers if (at := text.rfind(each)) >= 0), default=0)
        count, length = 0, len(text)
        for piece in reversed(pieces):
            length -= len(piece)
            if length < end:
                break
            count += 1
        return count


def _match_lengths(window: npt.NDArray[np.int64], longest: int) -> npt.NDArray[np.int64]:
    """For each place but the last: how long what ends there is also what the window ends with."""
    last = len(window) - 1
    lengths = np.zeros(last, np.int64)
    places = np.flatnonzero(window[:last] == window[last])
    for length in range(1, longest + 1):
        lengths[places] = length
        places = places[places >= length]
        places = places[window[places - length] == window[last - length]] if length <= last else places[:0]
        if not len(places):
            break
    return lengths
