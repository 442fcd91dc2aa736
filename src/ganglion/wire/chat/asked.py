"""The shape of what chat clients send, with the bounds of every field.

Null means the same as absent everywhere.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ganglion.core.request import Effort
from ganglion.wire.chat.legacy import FunctionChoice
from ganglion.wire.chat.tools import AnyTool, Function, ToolChoice
from ganglion.wire.constraint import ConstraintFields
from ganglion.wire.fields import (
    MAX_CHOICES,
    MAX_TOKENS,
    AnswerLength,
    CacheKey,
    ModelName,
    StreamOptions,
    TokenCount,
    TruncatedTokens,
)
from ganglion.wire.logprobs import AlternativeCount
from ganglion.wire.steering import AskedSteering


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """Text inside a list of parts."""

    text: str


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    """What an assistant said when it refused."""

    refusal: str


class ImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image; refused, since no model here sees."""


class InputImagePart(Struct, frozen=True, tag_field="type", tag="input_image"):
    """An image in the words of the Responses wire; refused."""


class AudioPart(Struct, frozen=True, tag_field="type", tag="input_audio"):
    """Audio; refused."""


class FilePart(Struct, frozen=True, tag_field="type", tag="file"):
    """A file; refused."""


UserPart = TextPart | ImagePart | InputImagePart | AudioPart | FilePart


class Opaque(Struct, frozen=True):
    """An object that is refused wherever it stands, so nothing of it is kept."""


class SystemMessage(Struct, frozen=True, tag_field="role", tag="system"):
    content: str | list[TextPart]
    name: str | None = None


class DeveloperMessage(Struct, frozen=True, tag_field="role", tag="developer"):
    content: str | list[TextPart]
    name: str | None = None


class UserMessage(Struct, frozen=True, tag_field="role", tag="user"):
    content: str | list[UserPart]
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


class AssistantMessage(Struct, frozen=True, tag_field="role", tag="assistant"):
    """An earlier answer; its reasoning is taken back under either of the names it went out with."""

    content: str | list[TextPart | RefusalPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[PastFunctionCall | PastCustomCall], Meta(max_length=1024)] | None = None
    function_call: PastFunction | None = None
    audio: Opaque | None = None


class ToolMessage(Struct, frozen=True, tag_field="role", tag="tool"):
    """What a tool answered."""

    content: str | list[TextPart]
    tool_call_id: str
    name: str | None = None


class FunctionMessage(Struct, frozen=True, tag_field="role", tag="function"):
    """What a function answered, in the words from before there were tools."""

    name: str
    content: str | None = None


AnyMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class AskedReasoning(Struct, frozen=True):
    """How much reasoning is asked for, as other servers and the Responses wire spell it."""

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: TokenCount | None = None
    exclude: bool | None = None
    summary: str | None = None


class ChatBody(ConstraintFields, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    model: ModelName
    messages: Annotated[list[AnyMessage], Meta(min_length=1, max_length=16384)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: AnswerLength | None = None
    max_completion_tokens: AnswerLength | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: AlternativeCount | None = None
    prompt_logprobs: AlternativeCount | None = None
    readout: bool | None = None
    steering: AskedSteering | None = None
    tools: Annotated[list[AnyTool], Meta(max_length=1024)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Function], Meta(max_length=1024)] | None = None
    function_call: FunctionChoice | None = None
    reasoning_effort: Effort | None = None
    reasoning: AskedReasoning | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    store: bool | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    truncate_prompt_tokens: TruncatedTokens | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    prompt_cache_key: CacheKey | None = None
