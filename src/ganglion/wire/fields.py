"""Fields that several wires name alike, with their bounds, and what they mean.

Null means the same as absent everywhere.
"""

from typing import Annotated

from msgspec import Meta, Struct

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import Sampling, Stop

MAX_CHOICES = 16
MAX_TOKENS = 2**31
MAX_TOKEN_ID = 2**31 - 1

TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
LogitBias = Annotated[
    dict[TokenId, Bias],
    Meta(max_length=1024, extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}}),
]
StopString = Annotated[str, Meta(min_length=1, max_length=512)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenCount = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
CacheKey = Annotated[str, Meta(max_length=512)]
"""Names what a request belongs with, so that its prompt meets the cache that knows it."""
ModelName = Annotated[str, Meta(min_length=1, max_length=1024)]

# llama.cpp reads the last uint32 as "choose one for me", so seeds are folded below it.
SEEDS = 2**32 - 1


class StreamOptions(Struct, frozen=True):
    """How to stream; obfuscation pads chunks against eavesdroppers, and we send none."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(Struct, frozen=True, kw_only=True):
    """How the next token is chosen and what ends an answer, in the words of OpenAI's first wires."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    logit_bias: LogitBias | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None


def sampling_of(asked: SamplingFields) -> Sampling:
    """How to choose tokens, as asked."""
    return Sampling(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=0 if asked.top_k == -1 else asked.top_k,
        min_p=asked.min_p,
        repetition_penalty=asked.repetition_penalty,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        seed=None if asked.seed is None else asked.seed % SEEDS,
        logit_bias=tuple((asked.logit_bias or {}).items()),
    )


def stop_of(asked: SamplingFields) -> Stop:
    """What ends the answer, as asked."""
    stop = asked.stop
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    return Stop(strings, tuple(asked.stop_token_ids or ()), bool(asked.ignore_eos))


def is_usage_included(options: StreamOptions | None, *, is_streamed: bool) -> bool:
    """Whether a stream ends with its usage; raises for options that cannot be had."""
    if options is None:
        return False
    if not is_streamed:
        raise InvalidValue("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if options.continuous_usage_stats:
        name = "stream_options.continuous_usage_stats"
        raise UnsupportedParameter(f"The parameter '{name}' is not supported.", param=name)
    return bool(options.include_usage)


def check_token_counts(min_tokens: int | None, max_tokens: int | None) -> None:
    """Raise where an answer would have to be longer than it may be."""
    if min_tokens and max_tokens is not None and min_tokens > max_tokens:
        raise InvalidValue(
            f"'min_tokens' is {min_tokens} and the answer may have {max_tokens} tokens at most.",
            param="min_tokens",
        )
