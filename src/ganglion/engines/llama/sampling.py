"""Choosing the next token of one sequence from its logits.

Law: logprobs are the model's own, read before any bias, penalty or temperature touches the row.
"""

import os
from typing import Final

import numpy as np
import numpy.typing as npt

from ganglion.core.errors import EngineFailed
from ganglion.core.request import ResolvedSampling
from ganglion.engines.llama.native_context import Floats, NativeContext
from ganglion.engines.llama.native_model import NativeModel
from ganglion.engines.llama.sampler_chain import SamplerChain

Ids = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

NEVER: Final = np.float32(-np.inf)


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
        self._bias = _bias(sampling, model, ignore_eos=ignore_eos)
        self._counts: dict[int, int] = {}
        self._said = dict.fromkeys(prompt) if sampling.repetition_penalty != 1.0 else {}
        self._chain: SamplerChain | None = None
        if sampling.temperature > 0.0:
            seed = sampling.seed if sampling.seed is not None else int.from_bytes(os.urandom(4))
            self._chain = SamplerChain(
                model.library,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                seed=seed % 2**32,
            )

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
            raise NotANumber("The model's output is not a number; this request cannot go on.")
        if withheld is not None or forbidden is not None:
            token = _restrict(logits, withheld, forbidden)
        if self._chain is not None:
            drawn = context.sample(self._chain, row)
            # Sums of floats leave a sliver of chance to what has none.
            token = drawn if logits[drawn] != NEVER else token
        self._remember(token)
        return token

    def free(self) -> None:
        """Give native memory back."""
        if self._chain is not None:
            self._chain.free()
            self._chain = None

    def _shape(self, logits: Floats) -> None:
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
        if self._bias is not None:
            tokens, values = self._bias
            logits[tokens] += values

    def _remember(self, token: int) -> None:
        sampling = self._sampling
        if sampling.frequency_penalty or sampling.presence_penalty:
            self._counts[token] = self._counts.get(token, 0) + 1
        if sampling.repetition_penalty != 1.0:
            self._said[token] = None


def _bias(sampling: ResolvedSampling, model: NativeModel, *, ignore_eos: bool) -> tuple[Ids, Floats] | None:
    bias: dict[int, np.float32] = {token: np.float32(value) for token, value in sampling.logit_bias}
    if ignore_eos:
        bias.update(dict.fromkeys(model.end_tokens, NEVER))
    if not bias:
        return None
    return np.fromiter(bias, np.int64, len(bias)), np.fromiter(bias.values(), np.float32, len(bias))


def _restrict(logits: Floats, withheld: Ids | None, forbidden: Booleans | None) -> int:
    """Rule tokens out; returns the likeliest that is left."""
    if withheld is not None:
        logits[withheld] = NEVER
    if forbidden is not None:
        logits[forbidden] = NEVER
    token = int(logits.argmax())
    if logits[token] == NEVER:
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
