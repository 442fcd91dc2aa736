"""The shape of what chat clients get, streamed or whole."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from ganglion.core.events import Alternative, FinishReason, Token
from ganglion.wire.fields import UsageTold
from ganglion.wire.logprobs import PromptLogprobs, shown, told
from ganglion.wire.readout import TokenReadout
from ganglion.wire.usage import CompletionUsage


@dataclass(frozen=True, slots=True)
class Reply:
    """What all chunks of one answer share, and how its client wants to hear it."""

    id: str
    created_s: int
    model: str
    fingerprint: str | None = None
    usage_told: UsageTold = "never"
    is_thought_shown: bool = False
    has_logprobs: bool = False
    prompt_logprobs: int | None = None
    """How many alternatives to show beside each token of the prompt; None shows none of them."""
    has_readout: bool = False
    custom_tools: frozenset[str] = frozenset()
    """The tools whose calls hold text and not JSON."""
    is_legacy: bool = False
    """Whether calls are told in the words from before there were tools."""
    has_token_ids: bool = False


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


class FunctionDelta(Struct, frozen=True):
    """A function's name on the first delta of a call, its arguments on all."""

    arguments: str
    name: str | UnsetType = UNSET


class CustomDelta(Struct, frozen=True):
    """A custom tool's name on the first delta of a call, its input on all."""

    input: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    """Part of a tool call; `id` and `type` stand on the first only."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class ChoiceDelta(Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


ChatFinish = FinishReason | Literal["function_call"]


class ChunkChoice(Struct, frozen=True):
    index: int
    delta: ChoiceDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: ChatFinish | None = None
    readout: list[TokenReadout] | UnsetType = UNSET
    """Of this chunk's tokens, whatever they belong to."""
    token_ids: tuple[int, ...] | UnsetType = UNSET
    """All that were generated, on the last chunk."""


class Chunk(Struct, frozen=True, kw_only=True):
    """The data of one frame of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    service_tier: Literal["default"] = "default"
    system_fingerprint: str | None
    choices: tuple[ChunkChoice, ...]
    usage: CompletionUsage | UnsetType | None = UNSET
    thought: str | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class CalledFunction(Struct, frozen=True):
    name: str
    arguments: str


class CalledCustom(Struct, frozen=True):
    name: str
    input: str


class FunctionCall(Struct, frozen=True, tag_field="type", tag="function"):
    id: str
    function: CalledFunction


class CustomCall(Struct, frozen=True, tag_field="type", tag="custom"):
    id: str
    custom: CalledCustom


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """The assistant's turn; reasoning stands under both of the names that clients look for."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[FunctionCall | CustomCall, ...] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class Choice(Struct, frozen=True):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: ChatFinish
    readout: list[TokenReadout] | UnsetType = UNSET
    """Of all its tokens, those of reasoning and calls too."""
    token_ids: tuple[int, ...] | UnsetType = UNSET
    """All that were generated, shown or not."""


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    service_tier: Literal["default"] = "default"
    system_fingerprint: str | None
    choices: tuple[Choice, ...]
    usage: CompletionUsage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    thought: str | UnsetType | None = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


def logprobs_of(tokens: Iterable[Token]) -> ChoiceLogprobs:
    """The tokens' probabilities as this wire tells them."""
    return ChoiceLogprobs(
        [
            TokenLogprob(
                shown(token.piece),
                told(token.logprob),
                list(token.piece),
                [_top(alternative) for alternative in token.top],
            )
            for token in tokens
            if token.logprob is not None
        ]
    )


def finish_of(reason: FinishReason, reply: Reply) -> ChatFinish:
    """How an answer ended, in the words that its client knows."""
    return "function_call" if reply.is_legacy and reason == "tool_calls" else reason


def _top(alternative: Alternative) -> TopLogprob:
    return TopLogprob(shown(alternative.piece), told(alternative.logprob), list(alternative.piece))
