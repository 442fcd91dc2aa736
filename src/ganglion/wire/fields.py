"""Fields that several wires share, with their bounds and their meaning.

Null means the same as absent everywhere.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ganglion.core.errors import InvalidValue
from ganglion.core.request import LEAST_URGENT, MOST_URGENT, JsonValue, Stop
from ganglion.core.sampling import (
    PARAMS,
    PLAIN,
    SAMPLER_PARAMS,
    SEEDS,
    Samplers,
    Sampling,
    limits,
    sampling_from,
)

MAX_CHOICES = 16
MAX_TOKENS = 2**31
MAX_TOKEN_ID = 2**31 - 1
_MAX_ALLOWED_TOKENS = 2**16

TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]
_LogitBias = Annotated[
    dict[TokenId, _Bias],
    Meta(max_length=1024, extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}}),
]
StopString = Annotated[str, Meta(min_length=1, max_length=512)]
_Breaker = Annotated[str, Meta(min_length=1, max_length=40)]
TruncatedTokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""How many of a prompt's last tokens are kept; -1 keeps what leaves room for the answer."""
TokenCount = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
AnswerLength = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
"""How many tokens an answer may have; 0 reads the prompt and says nothing."""
CacheKey = Annotated[str, Meta(max_length=512)]
"""Names what a request belongs with, so that its prompt meets the cache that knows it."""
ModelName = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"\S")]

UsageReporting = Literal["never", "last", "always"]
"""When a stream tells its usage: in a last chunk of its own, and in every chunk as far as it has come."""


class StreamOptions(Struct, frozen=True):
    """Options of a stream; obfuscation pads chunks against eavesdroppers, and we send none."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplerFields(Struct, frozen=True, kw_only=True):
    """Sampling by the names and within the bounds of `core.sampling`: what all wires that generate take."""

    repeat_last_n: Annotated[int, Meta(**limits("repeat_last_n"))] | None = None
    typical_p: Annotated[float, Meta(**limits("typical_p"))] | None = None
    top_n_sigma: Annotated[float, Meta(**limits("top_n_sigma"))] | None = None
    xtc_probability: Annotated[float, Meta(**limits("xtc_probability"))] | None = None
    xtc_threshold: Annotated[float, Meta(**limits("xtc_threshold"))] | None = None
    dry_multiplier: Annotated[float, Meta(**limits("dry_multiplier"))] | None = None
    dry_base: Annotated[float, Meta(**limits("dry_base"))] | None = None
    dry_allowed_length: Annotated[int, Meta(**limits("dry_allowed_length"))] | None = None
    dry_penalty_last_n: Annotated[int, Meta(**limits("dry_penalty_last_n"))] | None = None
    dry_sequence_breakers: Annotated[list[_Breaker], Meta(max_length=16)] | None = None
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: Annotated[float, Meta(**limits("mirostat_tau"))] | None = None
    mirostat_eta: Annotated[float, Meta(**limits("mirostat_eta"))] | None = None
    dynatemp_range: Annotated[float, Meta(**limits("dynatemp_range"))] | None = None
    dynatemp_exponent: Annotated[float, Meta(**limits("dynatemp_exponent"))] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=_MAX_ALLOWED_TOKENS)] | None = (
        None
    )
    temperature: Annotated[float, Meta(**limits("temperature"))] | None = None
    top_p: Annotated[float, Meta(**limits("top_p"))] | None = None
    top_k: Annotated[int, Meta(**limits("top_k"))] | None = None
    min_p: Annotated[float, Meta(**limits("min_p"))] | None = None
    presence_penalty: Annotated[float, Meta(**limits("presence_penalty"))] | None = None
    frequency_penalty: Annotated[float, Meta(**limits("frequency_penalty"))] | None = None
    repeat_penalty: Annotated[float, Meta(**limits("repetition_penalty"))] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None


class SamplingFields(SamplerFields, frozen=True, kw_only=True):
    """Sampling and stop fields of OpenAI's wires."""

    repetition_penalty: Annotated[float, Meta(**limits("repetition_penalty"))] | None = None
    logit_bias: _LogitBias | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=MOST_URGENT, le=LEAST_URGENT)] | None = None


def sampling_of(body: SamplingFields) -> Sampling:
    """The sampling that a body asks for."""
    return sampling_from(
        {name: getattr(body, name) for name in PARAMS}
        | {
            "repetition_penalty": _repetition_penalty(body),
            "logit_bias": tuple((body.logit_bias or {}).items()),
            "samplers": samplers_of(body),
        }
    )


def _repetition_penalty(fields: SamplingFields) -> float | None:
    """Under vLLM's name or llama-server's."""
    if fields.repetition_penalty is None:
        return fields.repeat_penalty
    if fields.repeat_penalty not in (None, fields.repetition_penalty):
        raise InvalidValue(
            f"'repetition_penalty' is {fields.repetition_penalty} and 'repeat_penalty' is "
            f"{fields.repeat_penalty}; they mean the same, so give one.",
            param="repeat_penalty",
        )
    return fields.repetition_penalty


def samplers_of(body: SamplerFields) -> Samplers:
    """The samplers that a body asks for, the others at their defaults."""
    given: dict[str, Any] = {}
    for name in SAMPLER_PARAMS:
        value = getattr(body, name)
        if value is not None:
            given[name] = tuple(value) if isinstance(value, list) else value
    return Samplers(**given) if given else PLAIN


def sampler_fields(samplers: Samplers) -> dict[str, JsonValue]:
    """The fields that ask for these: the reverse of `samplers_of`."""
    if samplers == PLAIN:
        return {}
    fields: dict[str, JsonValue] = {}
    for name in SAMPLER_PARAMS:
        value = getattr(samplers, name)
        if value != getattr(PLAIN, name):
            fields[name] = list(value) if isinstance(value, tuple) else value
    return fields


def choice_samplings(sampling: Sampling, count: int) -> tuple[Sampling, ...]:
    """The sampling of each of `n` choices: choice i takes seed + i."""
    seed = sampling.seed
    if seed is None or count == 1:
        return (sampling,) * count
    return tuple(replace(sampling, seed=(seed + choice) % SEEDS) for choice in range(count))


def stop_of(fields: SamplingFields) -> Stop:
    """The stop conditions that a body asks for."""
    stop = fields.stop
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    is_shown = bool(fields.include_stop_str_in_output)
    return Stop(strings, tuple(fields.stop_token_ids or ()), bool(fields.ignore_eos), is_shown)


def usage_reporting(options: StreamOptions | None, *, is_streamed: bool) -> UsageReporting:
    """When a stream tells its usage; raises for options that cannot be had."""
    if options is None:
        return "never"
    if not is_streamed:
        raise InvalidValue("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if not options.include_usage:
        return "never"
    return "always" if options.continuous_usage_stats else "last"


def check_token_counts(
    min_tokens: int | None, max_tokens: int | None, truncate_prompt_tokens: int | None
) -> None:
    """Raise where nothing of a prompt would be left, or an answer would have to be longer than it may be."""
    if truncate_prompt_tokens == 0:
        raise InvalidValue(
            "'truncate_prompt_tokens' is 0, and nothing of the prompt would be left.",
            param="truncate_prompt_tokens",
        )
    if min_tokens and max_tokens is not None and min_tokens > max_tokens:
        raise InvalidValue(
            f"'min_tokens' is {min_tokens} and the answer may have {max_tokens} tokens at most.",
            param="min_tokens",
        )
