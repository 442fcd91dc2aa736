"""Penalties on tokens that were said before: repetition over prompt and answer, the others over the answer.

Law: a step costs what the distinct tokens it remembers cost, with a window or without.
"""

from collections import Counter, deque

import numpy as np
import numpy.typing as npt

from ganglion.core.request import ResolvedSampling


class Penalties:
    """One sequence's memory of what it said, all of it or the last so many tokens."""

    def __init__(self, sampling: ResolvedSampling, prompt: list[int]) -> None:
        self._sampling = sampling
        self._repeats = sampling.repetition_penalty != 1.0
        self._counts_answer = bool(sampling.frequency_penalty or sampling.presence_penalty)
        window = sampling.samplers.repeat_last_n
        self._recent: deque[tuple[int, bool]] | None = None
        """The tokens of the window, each with whether it is the answer's."""
        if window > 0:
            prompt = prompt[-window:]
            self._recent = deque([(token, False) for token in prompt], maxlen=window)
        self._said: Counter[int] = Counter(prompt) if self._repeats else Counter()
        self._counts: Counter[int] = Counter()

    @staticmethod
    def are_asked(sampling: ResolvedSampling) -> bool:
        """Whether anything is to be punished."""
        is_some = (
            sampling.repetition_penalty != 1.0 or sampling.frequency_penalty or sampling.presence_penalty
        )
        return bool(is_some) and sampling.samplers.repeat_last_n != 0

    def apply(self, logits: npt.NDArray[np.float32]) -> None:
        """Lower what was said; changes the row in place."""
        sampling = self._sampling
        if self._said:
            seen = np.fromiter(self._said, np.int64, len(self._said))
            values = logits[seen]
            penalty = np.float32(sampling.repetition_penalty)
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._counts:
            seen = np.fromiter(self._counts, np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits[seen] -= counts * sampling.frequency_penalty + sampling.presence_penalty

    def remember(self, token: int) -> None:
        """Take what was said, and forget what falls out of the window."""
        if self._recent is not None:
            if len(self._recent) == self._recent.maxlen:
                self._forget(*self._recent[0])
            self._recent.append((token, True))
        if self._counts_answer:
            self._counts[token] += 1
        if self._repeats:
            self._said[token] += 1

    def _forget(self, token: int, is_answer: bool) -> None:
        for counts in (self._said, self._counts) if is_answer else (self._said,):
            if counts[token] <= 1:
                counts.pop(token, None)
            else:
                counts[token] -= 1
