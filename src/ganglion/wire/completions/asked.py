"""The shape of what completion clients send, with the bounds of every field."""

from typing import Annotated

from msgspec import Meta

from ganglion.core.request import JsonValue
from ganglion.wire.constraint import ConstraintFields
from ganglion.wire.fields import (
    MAX_CHOICES,
    MAX_TOKENS,
    AnswerLength,
    CacheKey,
    ModelName,
    StreamOptions,
    TokenId,
    TruncatedTokens,
)
from ganglion.wire.logprobs import AlternativeCount
from ganglion.wire.steering import AskedSteering

MAX_PROMPTS = 1024
MAX_PROMPT_TOKENS = 2**20

_IDS: dict[str, JsonValue] = {"type": "array", "items": {"type": "integer"}}
_ALIKE: dict[str, JsonValue] = {
    "anyOf": [{"items": {"type": "string"}}, {"items": {"type": "integer"}}, {"items": _IDS}]
}
TokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_PROMPT_TOKENS)]
# One list of the three kinds, since a decoder cannot tell three kinds of list apart.
Prompts = Annotated[
    list[str | TokenId | TokenIds],
    Meta(min_length=1, max_length=MAX_PROMPT_TOKENS, extra_json_schema=_ALIKE),
]


class CompletionBody(ConstraintFields, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`; a prompt is text or token ids, and there may be many."""

    model: ModelName
    prompt: str | Prompts
    suffix: str | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: AnswerLength | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: AlternativeCount | None = None
    prompt_logprobs: AlternativeCount | None = None
    readout: bool | None = None
    steering: AskedSteering | None = None
    truncate_prompt_tokens: TruncatedTokens | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    prompt_cache_key: CacheKey | None = None
