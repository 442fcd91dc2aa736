"""Chooses the next token of one sequence from its logits.

Law: logprobs are the model's own, read before any bias, penalty or temperature touches the row.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ganglion.core.errors import EngineFailed
from ganglion.core.sampling import ResolvedSampling, Samplers
from ganglion.engines.llama.native.arrays import Booleans, Floats, Ids
from ganglion.engines.llama.native.context import NativeContext
from ganglion.engines.llama.native.graph_chain import graph_shape, is_number
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.native.sampler_chain import SamplerChain
from ganglion.engines.llama.worker.graph_sampling import GraphDraw

# Law: a step costs what the distinct tokens it remembers cost, with a window or without.


class _Penalties:
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


# Written here and not taken from the library: its own reads the whole vocabulary once for each request, on
# the thread that all sequences wait for. Law: a step costs a bounded number of passes over a bounded
# window.

MAX_WINDOW: Final = 8192
"""Tokens that are searched for repetitions, whatever is asked."""
MAX_MATCH: Final = 50
"""The longest repetition that is told from a longer one: its penalty is prohibitive long before."""
_MAX_PENALTY: Final = 1e6
"""Logits stay numbers."""


class DryPenalty:
    """One sequence's memory of what it said, and the penalties that follow from it."""

    def __init__(self, samplers: Samplers, prompt: Sequence[int], piece: Callable[[int], bytes]) -> None:
        """`piece` gives a token's bytes."""
        last_n = samplers.dry_penalty_last_n
        self._window = MAX_WINDOW if last_n < 0 else min(last_n, MAX_WINDOW)
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
        # Of several positions before the same token the longest is written last, and stays.
        penalties[window[1:][is_long][order]] = np.minimum(
            self._samplers.dry_multiplier * np.power(self._samplers.dry_base, exponents), _MAX_PENALTY
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
    """For each position but the last: how long what ends there is also what the window ends with."""
    last = len(window) - 1
    lengths = np.zeros(last, np.int64)
    ends = np.flatnonzero(window[:last] == window[last])
    for length in range(1, longest + 1):
        lengths[ends] = length
        ends = ends[ends >= length]
        ends = ends[window[ends - length] == window[last - length]] if length <= last else ends[:0]
        if not len(ends):
            break
    return lengths


_NEVER: Final = np.float32(-np.inf)


class NotANumber(EngineFailed):
    """The model computed NaN or infinity for this sequence."""


class NothingLeft(EngineFailed):
    """No token may come next."""


class Sampler:
    """One sequence's choices, with the penalties' memory of what it already said."""

    def __init__(
        self, model: NativeModel, sampling: ResolvedSampling, prompt: list[int], *, ignore_eos: bool
    ) -> None:
        self._sampling = sampling
        self._model = model
        self._bias = _bias(sampling, model, ignore_eos=ignore_eos)
        self._penalties = _Penalties(sampling, prompt) if _Penalties.are_asked(sampling) else None
        more = sampling.samplers
        self._dry = DryPenalty(more, prompt, model.piece) if more.has_dry else None
        self._disallowed = _disallowed(more.allowed_token_ids, model)
        self._chain: SamplerChain | None = None
        seed = sampling.seed if sampling.seed is not None else int.from_bytes(os.urandom(4))
        self._seed = seed % 2**32

    def graph_draw(self) -> GraphDraw | None:
        """What the graph is to draw in place of `choose`; None where it cannot."""
        bias: tuple[tuple[int, float], ...] = ()
        if self._bias is not None:
            tokens, values = self._bias
            bias = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
        shape = graph_shape(self._sampling, bias, self._model.vocabulary_size)
        return None if shape is None else GraphDraw(shape, self._seed)

    def choose(
        self,
        context: NativeContext,
        row: int,
        logits: Floats,
        *,
        withheld: Ids | None = None,
        forbidden: Booleans | None = None,
    ) -> int:
        """The next token, neither withheld nor marked forbidden; changes the row in place."""
        self._shape(logits)
        token = int(logits.argmax())
        if not np.isfinite(logits[token]):
            raise _not_a_number()
        if self._disallowed is not None:
            token = _restrict(logits, None, self._disallowed)
        if withheld is not None or forbidden is not None:
            token = _restrict(logits, withheld, forbidden)
        chain = self._own_chain()
        if chain is not None:
            drawn = context.sample(chain, row)
            # Sums of floats leave a sliver of chance to what has none.
            token = drawn if logits[drawn] != _NEVER else token
        if self._penalties is not None:
            self._penalties.remember(token)
        if self._dry is not None:
            self._dry.remember(token)
        return token

    def free(self) -> None:
        """Give native memory back."""
        if self._chain is not None:
            self._chain.free()
            self._chain = None

    def _own_chain(self) -> SamplerChain | None:
        """The library's samplers, made for the first token that is drawn here."""
        sampling = self._sampling
        if self._chain is None and (sampling.temperature > 0.0 or sampling.samplers.draws):
            self._chain = SamplerChain(
                self._model.library, sampling, vocabulary_size=self._model.vocabulary_size, seed=self._seed
            )
        return self._chain

    def _shape(self, logits: Floats) -> None:
        if self._penalties is not None:
            self._penalties.apply(logits)
        if self._dry is not None:
            self._dry.apply(logits)
        if self._bias is not None:
            tokens, values = self._bias
            logits[tokens] += values


def check_drawn(total: float) -> None:
    """Raise for a token that the graph drew from a row that was no numbers; `total` is the row's sum."""
    if not is_number(total):
        raise _not_a_number()


def _not_a_number() -> NotANumber:
    return NotANumber("The model's output is not a number; this request cannot go on.")


def _disallowed(allowed: tuple[int, ...] | None, model: NativeModel) -> Booleans | None:
    if allowed is None:
        return None
    disallowed = np.ones(model.vocabulary_size, np.bool_)
    disallowed[np.fromiter(allowed, np.int64, len(allowed))] = False
    return disallowed


def _bias(sampling: ResolvedSampling, model: NativeModel, *, ignore_eos: bool) -> tuple[Ids, Floats] | None:
    bias: dict[int, np.float32] = {token: np.float32(value) for token, value in sampling.logit_bias}
    if ignore_eos:
        bias.update(dict.fromkeys(model.end_tokens, _NEVER))
    if not bias:
        return None
    return np.fromiter(bias, np.int64, len(bias)), np.fromiter(bias.values(), np.float32, len(bias))


def _restrict(logits: Floats, withheld: Ids | None, forbidden: Booleans | None) -> int:
    """Rule tokens out; returns the likeliest that is left."""
    if withheld is not None:
        logits[withheld] = _NEVER
    if forbidden is not None:
        logits[forbidden] = _NEVER
    token = int(logits.argmax())
    if logits[token] == _NEVER:
        raise NothingLeft("No token may come next.")
    return token


def logprobs(logits: Floats, count: int) -> tuple[float, list[tuple[int, float]]]:
    """The row's log-normaliser and its `count` likeliest tokens with their logprobs, likeliest first."""
    highest = logits.max()
    normaliser = float(highest + np.log(np.exp(logits - highest, dtype=np.float32).sum(dtype=np.float64)))
    if count == 0:
        return normaliser, []
    likeliest = np.argpartition(logits, -count)[-count:]
    ordered = likeliest[np.argsort(-logits[likeliest], kind="stable")]
    return normaliser, [(int(token), float(logits[token]) - normaliser) for token in ordered]
