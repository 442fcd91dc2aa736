"""The fields that the bodies of chat and completions share, and the request that they ask for.

Null means the same as absent everywhere.
"""

from typing import Annotated

from msgspec import Meta

from ganglion.core.request import ChatPrompt, Request, TextPrompt
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.constraint import ConstraintFields, constraint_of
from ganglion.wire.fields import (
    MAX_CHOICES,
    MAX_TOKENS,
    AnswerLength,
    CacheKey,
    ModelName,
    StreamOptions,
    TruncatedTokens,
    sampling_of,
    stop_of,
)
from ganglion.wire.logprobs import AlternativeCount
from ganglion.wire.steering import SteeringSpec, steering_of


class GenerationFields(ConstraintFields, frozen=True, kw_only=True):
    """The fields that shape an answer on both wires."""

    model: ModelName
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: AnswerLength | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    prompt_logprobs: AlternativeCount | None = None
    readout: bool | None = None
    steering: SteeringSpec | None = None
    truncate_prompt_tokens: TruncatedTokens | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    prompt_cache_key: CacheKey | None = None


def request_of(
    fields: GenerationFields,
    context: ParseContext,
    prompt: ChatPrompt | TextPrompt,
    *,
    max_tokens: int | None,
    top_logprobs: int | None,
    keep_markers: bool,
) -> Request:
    """The request of the first choice."""
    return Request(
        id=context.id,
        model=fields.model,
        prompt=prompt,
        sampling=sampling_of(fields),
        stop=stop_of(fields),
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens or 0,
        constraint=constraint_of(fields),
        top_logprobs=top_logprobs,
        priority=fields.priority or 0,
        tenant=context.tenant,
        keep_markers=keep_markers,
        wants_readout=bool(fields.readout),
        steering=steering_of(fields.steering) if fields.steering else (),
        affinity=fields.prompt_cache_key or "",
        shows_special=fields.skip_special_tokens is False,
        wants_token_ids=bool(fields.return_token_ids),
        truncate_prompt=fields.truncate_prompt_tokens,
    )
