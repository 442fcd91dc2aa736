"""The schema of completion bodies and replies, with the bounds of every field."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ganglion.core.events import FinishReason
from ganglion.core.request import JsonValue
from ganglion.wire.chunk_stream import ChunkContext
from ganglion.wire.completions.completion_logprobs import CompletionLogprobs
from ganglion.wire.fields import (
    MAX_CHOICES,
    TokenId,
)
from ganglion.wire.generation_fields import GenerationFields
from ganglion.wire.logprobs import AlternativeCount, PromptLogprobs
from ganglion.wire.readout import TokenReadout
from ganglion.wire.usage import CompletionUsage

_CompletionFinish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class CompletionReplyContext(ChunkContext):
    """The fields that all chunks of one answer share, and the options of its client."""

    per_prompt: int = 1
    """How many choices each prompt has."""
    logprobs: int | None = None
    """How many alternatives to show beside each token; None shows no logprobs."""
    echoes: tuple[str | None, ...] = ()
    """What each choice begins with; None takes it from the scored tokens. Empty without `echo`."""

    @property
    def is_echoed(self) -> bool:
        """Whether the prompt stands before its completion."""
        return bool(self.echoes)

    def echo(self, choice: int) -> str | None:
        """The echoed prompt of a choice, where it is known already."""
        return self.echoes[choice] if self.echoes else ""


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One answer, or the next part of it."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: _CompletionFinish | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    readout: list[TokenReadout] | UnsetType = UNSET
    """Of the tokens that were generated."""
    token_ids: tuple[int, ...] | UnsetType = UNSET
    """All that were generated, shown or not; of a stream on the last chunk."""
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """The whole answer, or the data of one frame of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None
    choices: tuple[CompletionChoice, ...]
    usage: CompletionUsage | UnsetType | None = UNSET


def finish_of(reason: FinishReason) -> _CompletionFinish:
    """The finish reason on this wire, which knows no tool calls."""
    return "length" if reason == "length" else "stop"


MAX_PROMPTS = 1024
_MAX_PROMPT_TOKENS = 2**20

_IDS: dict[str, JsonValue] = {"type": "array", "items": {"type": "integer"}}
_ALIKE: dict[str, JsonValue] = {
    "anyOf": [{"items": {"type": "string"}}, {"items": {"type": "integer"}}, {"items": _IDS}]
}
_TokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=_MAX_PROMPT_TOKENS)]
# One list of the three kinds, since a decoder cannot tell three kinds of list apart.
_Prompts = Annotated[
    list[str | TokenId | _TokenIds],
    Meta(min_length=1, max_length=_MAX_PROMPT_TOKENS, extra_json_schema=_ALIKE),
]


class CompletionBody(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`; a prompt is text or token ids, and there may be many."""

    prompt: str | _Prompts
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: AlternativeCount | None = None
