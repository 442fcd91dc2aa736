"""Choosing the next token of one sequence from its logits.

Law: logprobs are the model's own, read before any bias, penalty or temperature touches the row.
"""

import os
from typing import Final

import numpy as np
import numpy.typing as npt

from ganglion.core.errors import EngineFailed
from ganglion.core.request import ResolvedSampling
from ganglion.engines.llama.dry import DryPenalty
from ganglion.engines.llama.native_context import Floats, NativeContext
from ganglion.engines.llama.native_model import NativeModel
from ganglion.engines.llama.penalties import Penalties
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
        self._penalties = Penalties(sampling, prompt) if Penalties.are_asked(sampling) else None
        more = sampling.samplers
        self._dry = DryPenalty(more, prompt, model.piece) if more.has_dry else None
        self._disallowed = _disallowed(more.allowed_token_ids, model)
        self._chain: SamplerChain | None = None
        if sampling.temperature > 0.0 or more.draws:
            seed = sampling.seed if sampling.seed is not None else int.from_bytes(os.urandom(4))
            self._chain = SamplerChain(
                model.library, sampling, vocabulary_size=model.vocabulary_size, seed=seed % 2**32
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
        if self._disallowed is not None:
            token = _restrict(logits, None, self._disallowed)
        if withheld is not None or forbidden is not None:
            token = _restrict(logits, withheld, forbidden)
        if self._chain is not None:
            drawn = context.sample(self._chain, row)
            # Sums of floats leave a sliver of chance to what has none.
            token = drawn if logits[drawn] != NEVER else token
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

    def _shape(self, logits: Floats) -> None:
        if self._penalties is not None:
            self._penalties.apply(logits)
        if self._dry is not None:
            self._dry.apply(logits)
        if self._bias is not None:
            tokens, values = self._bias
            logits[tokens] += values


def _disallowed(allowed: tuple[int, ...] | None, model: NativeModel) -> Booleans | None:
    if allowed is None:
        return None
    disallowed = np.ones(model.vocabulary_size, np.bool_)
    disallowed[np.fromiter(allowed, np.int64, len(allowed))] = False
    return disallowed


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
