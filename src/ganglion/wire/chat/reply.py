"""The shape of what chat clients get, streamed or whole."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from ganglion.core.events import Alternative, FinishReason, Token, Usage

# JSON has no -inf; clients expect the floor that OpenAI sends for tokens outside the reported ones.
_LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What all chunks of one answer share, and how its client wants to hear it."""

    id: str
    created_s: int
    model: str
    fingerprint: str | None = None
    is_usage_included: bool = False
    is_thought_shown: bool = False
    has_logprobs: bool = False


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(Struct, frozen=True):
    """Tokens of the content; reasoning and tool calls report none."""

    content: list[TokenLogprob]
    refusal: None = None


class PromptTokenDetails(Struct, frozen=True):
    cached_tokens: int


class CompletionTokenDetails(Struct, frozen=True):
    reasoning_tokens: int


class ChatUsage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokenDetails
    completion_tokens_details: CompletionTokenDetails


class FunctionDelta(Struct, frozen=True):
    """A function's name on the first delta of a call, its arguments on all."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct, frozen=True):
    """Part of a tool call; `id` and `type` stand on the first only."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChoiceDelta(Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True):
    index: int
    delta: ChoiceDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class Chunk(Struct, frozen=True, kw_only=True):
    """The data of one frame of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    service_tier: Literal["default"] = "default"
    system_fingerprint: str | None
    choices: tuple[ChunkChoice, ...]
    usage: ChatUsage | UnsetType | None = UNSET
    thought: str | UnsetType = UNSET


class CalledFunction(Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """The assistant's turn; reasoning stands under both of the names that clients look for."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET


class Choice(Struct, frozen=True):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    service_tier: Literal["default"] = "default"
    system_fingerprint: str | None
    choices: tuple[Choice, ...]
    usage: ChatUsage
    thought: str | UnsetType | None = UNSET


def usage_of(choices: Sequence[Usage]) -> ChatUsage:
    """One usage for all choices: the prompt they share counts once, what each generated is summed.

    Later choices find the first one's prompt in the cache, so the smallest cached count is what was there
    before this call.
    """
    prompt_tokens = max(usage.prompt_tokens for usage in choices)
    completion_tokens = sum(usage.completion_tokens for usage in choices)
    return ChatUsage(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptTokenDetails(min(usage.cached_tokens for usage in choices)),
        CompletionTokenDetails(sum(usage.reasoning_tokens for usage in choices)),
    )


def logprobs_of(tokens: Iterable[Token]) -> ChoiceLogprobs:
    """The tokens' probabilities as this wire tells them."""
    return ChoiceLogprobs(
        [
            TokenLogprob(
                _shown(token.piece),
                max(token.logprob, _LOWEST_LOGPROB),
                list(token.piece),
                [_top(alternative) for alternative in token.top],
            )
            for token in tokens
            if token.logprob is not None
        ]
    )


def _top(alternative: Alternative) -> TopLogprob:
    logprob = max(alternative.logprob, _LOWEST_LOGPROB)
    return TopLogprob(_shown(alternative.piece), logprob, list(alternative.piece))


def _shown(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")
