"""The schema of chat bodies and replies, with the bounds of every field.

Null means the same as absent everywhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ganglion.core.events import FinishReason, Token
from ganglion.core.request import Effort, ImageDetail
from ganglion.wire.chat.chat_tools import ChatFunction, ChatTool, FunctionChoice, ToolChoice
from ganglion.wire.chunk_stream import ChunkContext
from ganglion.wire.fields import (
    AnswerLength,
    TokenCount,
)
from ganglion.wire.generation_fields import GenerationFields
from ganglion.wire.logprobs import AlternativeCount, PromptLogprobs, told_logprobs
from ganglion.wire.readout import TokenReadout
from ganglion.wire.usage import CompletionUsage


@dataclass(frozen=True, slots=True)
class ChatReplyContext(ChunkContext):
    """The fields that all chunks of one answer share, and the options of its client."""

    shows_thought: bool = False
    has_logprobs: bool = False
    custom_tools: frozenset[str] = frozenset()
    """The tools whose calls hold text and not JSON."""
    is_legacy: bool = False
    """Whether calls are told in the words from before there were tools."""


class ChatTopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTopLogprob]


class ChoiceLogprobs(Struct, frozen=True):
    """Tokens of the content; reasoning and tool calls report none."""

    content: list[ChatTokenLogprob]
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


_ChatFinish = FinishReason | Literal["function_call"]


class ChunkChoice(Struct, frozen=True):
    index: int
    delta: ChoiceDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: _ChatFinish | None = None
    readout: list[TokenReadout] | UnsetType = UNSET
    """Of this chunk's tokens, whatever they belong to."""
    token_ids: tuple[int, ...] | UnsetType = UNSET
    """All that were generated, on the last chunk."""


class ChatCompletionChunk(Struct, frozen=True, kw_only=True):
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


class ChatFunctionCall(Struct, frozen=True, tag_field="type", tag="function"):
    id: str
    function: CalledFunction


class ChatCustomCall(Struct, frozen=True, tag_field="type", tag="custom"):
    id: str
    custom: CalledCustom


class ChatCompletionMessage(Struct, frozen=True, kw_only=True):
    """The assistant's turn; reasoning stands under both of the names that clients look for."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[ChatFunctionCall | ChatCustomCall, ...] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    index: int
    message: ChatCompletionMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: _ChatFinish
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
    choices: tuple[ChatChoice, ...]
    usage: CompletionUsage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    thought: str | UnsetType | None = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


def logprobs_of(tokens: Iterable[Token]) -> ChoiceLogprobs:
    """The tokens' probabilities as this wire tells them."""
    return ChoiceLogprobs(told_logprobs(tokens, ChatTokenLogprob, ChatTopLogprob))


def finish_of(reason: FinishReason, reply: ChatReplyContext) -> _ChatFinish:
    """The finish reason that a client of this wire knows."""
    return "function_call" if reply.is_legacy and reason == "tool_calls" else reason


class ChatTextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """Text inside a list of parts."""

    text: str


class ChatRefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    """What an assistant said when it refused."""

    refusal: str


class ChatImageUrl(Struct, frozen=True):
    """A data URI, or an http or https address."""

    url: str
    detail: ImageDetail | None = None


class ChatImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image, for a model that sees."""

    image_url: ChatImageUrl


class ChatInputImagePart(Struct, frozen=True, tag_field="type", tag="input_image"):
    """An image in the words of the Responses wire."""

    image_url: str
    detail: ImageDetail | None = None


class ChatAudio(Struct, frozen=True):
    """A sound as base64."""

    data: str
    format: Literal["wav", "mp3"]


class ChatAudioPart(Struct, frozen=True, tag_field="type", tag="input_audio"):
    """A sound, for a model that hears."""

    input_audio: ChatAudio


class ChatFilePart(Struct, frozen=True, tag_field="type", tag="file"):
    """A file; refused."""


ChatUserPart = ChatTextPart | ChatImagePart | ChatInputImagePart | ChatAudioPart | ChatFilePart


class OpaqueObject(Struct, frozen=True):
    """An object that is refused wherever it stands, so nothing of it is kept."""


class ChatSystemMessage(Struct, frozen=True, tag_field="role", tag="system"):
    content: str | list[ChatTextPart]
    name: str | None = None


class ChatDeveloperMessage(Struct, frozen=True, tag_field="role", tag="developer"):
    content: str | list[ChatTextPart]
    name: str | None = None


class ChatUserMessage(Struct, frozen=True, tag_field="role", tag="user"):
    content: str | list[ChatUserPart]
    name: str | None = None


class PastFunction(Struct, frozen=True):
    name: str
    arguments: str = ""


class PastInput(Struct, frozen=True):
    name: str
    input: str = ""


class PastFunctionCall(Struct, frozen=True, tag_field="type", tag="function"):
    """A function that an assistant called, with JSON as text."""

    id: str
    function: PastFunction


class PastCustomCall(Struct, frozen=True, tag_field="type", tag="custom"):
    """A custom tool that an assistant called, with text."""

    id: str
    custom: PastInput


class ChatAssistantMessage(Struct, frozen=True, tag_field="role", tag="assistant"):
    """An earlier answer; its reasoning is taken back under either of the names it went out with."""

    content: str | list[ChatTextPart | ChatRefusalPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[PastFunctionCall | PastCustomCall], Meta(max_length=1024)] | None = None
    function_call: PastFunction | None = None
    audio: OpaqueObject | None = None


class ChatToolMessage(Struct, frozen=True, tag_field="role", tag="tool"):
    """What a tool answered, images included: other wires have them there, and a gateway puts them in chat."""

    content: str | list[ChatUserPart]
    tool_call_id: str
    name: str | None = None


class ChatFunctionMessage(Struct, frozen=True, tag_field="role", tag="function"):
    """What a function answered, in the words from before there were tools."""

    name: str
    content: str | None = None


ChatMessageParam = (
    ChatSystemMessage
    | ChatDeveloperMessage
    | ChatUserMessage
    | ChatAssistantMessage
    | ChatToolMessage
    | ChatFunctionMessage
)


class ChatReasoningOptions(Struct, frozen=True):
    """The amount of reasoning, as other servers and the Responses wire spell it."""

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: TokenCount | None = None
    exclude: bool | None = None
    summary: str | None = None


class ChatBody(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessageParam], Meta(min_length=1, max_length=16384)]
    max_completion_tokens: AnswerLength | None = None
    logprobs: bool | None = None
    top_logprobs: AlternativeCount | None = None
    tools: Annotated[list[ChatTool], Meta(max_length=1024)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[ChatFunction], Meta(max_length=1024)] | None = None
    function_call: FunctionChoice | None = None
    reasoning_effort: Effort | None = None
    reasoning: ChatReasoningOptions | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    store: bool | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
