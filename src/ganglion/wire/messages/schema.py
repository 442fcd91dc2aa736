"""The schema of Messages bodies, with the bounds of every field.

Null means the same as absent everywhere. `cache_control` may stand on anything and is not read: what was seen
before is cached without being asked.
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

from ganglion.wire.fields import MAX_TOKENS, AnswerLength, ModelName, SamplingFields, StopString
from ganglion.wire.messages.hosted_blocks import (
    CompactionBlock,
    ContainerUploadBlock,
    HostedToolResult,
    HostedToolUse,
    Wordless,
)

_JsonObject = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
"""Free-form JSON, kept as it stands until its size is known."""
_MaybeObject = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})]
"""The same where it may be absent: msgspec reads no union with Raw in it."""
_ToolId = Annotated[str, Meta(min_length=1, max_length=256)]
_ToolName = Annotated[str, Meta(min_length=1, max_length=256)]


_NULL = b"null"


def _absent() -> Raw:
    return Raw(_NULL)


def is_absent(value: Raw) -> bool:
    """Whether a MaybeObject is null or was left out."""
    return bytes(value) == _NULL


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ImageBytes(Struct, frozen=True, tag_field="type", tag="base64"):
    """An image as base64, and what it is."""

    data: str
    media_type: Annotated[str, Meta(max_length=256)]


class ImageAddress(Struct, frozen=True, tag_field="type", tag="url"):
    """An image somewhere else."""

    url: str


class ImageFile(Struct, frozen=True, tag_field="type", tag="file"):
    """An uploaded image; refused, since no files are kept."""

    file_id: str


class MessagesImageBlock(Struct, frozen=True, tag_field="type", tag="image"):
    """An image, for a model that sees."""

    source: ImageBytes | ImageAddress | ImageFile


class TextSource(Struct, frozen=True, tag_field="type", tag="text"):
    """A document's text."""

    data: str


class ContentSource(Struct, frozen=True, tag_field="type", tag="content"):
    """A document made of blocks."""

    content: str | list[TextBlock | MessagesImageBlock]


class Base64Source(Struct, frozen=True, tag_field="type", tag="base64"):
    """A PDF; refused."""


class UrlSource(Struct, frozen=True, tag_field="type", tag="url"):
    """A PDF somewhere else; refused."""


class UploadedFileSource(Struct, frozen=True, tag_field="type", tag="file"):
    """An uploaded file; refused."""


class Citations(Struct, frozen=True):
    enabled: bool | None = None


class DocumentBlock(Struct, frozen=True, tag_field="type", tag="document"):
    """A document; one that is text is read as text."""

    source: TextSource | ContentSource | Base64Source | UrlSource | UploadedFileSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResultBlock(Struct, frozen=True, tag_field="type", tag="search_result"):
    """Something that a client's own search found, read as text."""

    content: list[TextBlock]
    source: str | None = None
    title: str | None = None
    citations: Citations | None = None


class ToolReferenceBlock(Struct, frozen=True, tag_field="type", tag="tool_reference"):
    """A tool that a search found; every tool is in the prompt already, so this is only its name."""

    tool_name: _ToolName


class ToolResultBlock(Struct, frozen=True, tag_field="type", tag="tool_result"):
    """The answer of a tool."""

    tool_use_id: _ToolId
    content: (
        str
        | list[TextBlock | MessagesImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock]
        | None
    ) = None
    is_error: bool | None = None


class ToolUseBlock(Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call that the assistant made earlier."""

    id: _ToolId
    name: _ToolName
    input: _JsonObject


class ThinkingBlock(Struct, frozen=True, tag_field="type", tag="thinking"):
    """Earlier reasoning; believed when the signature is our seal of it."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Reasoning that another server hid; nobody here can read it."""


UserBlock = (
    TextBlock
    | MessagesImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolResultBlock
    | ContainerUploadBlock
    | CompactionBlock
)
AssistantBlock = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | HostedToolUse
    | HostedToolResult
    | Wordless
    | CompactionBlock
)


class MessagesUserMessage(Struct, frozen=True, tag_field="role", tag="user"):
    content: str | list[UserBlock]


class MessagesAssistantMessage(Struct, frozen=True, tag_field="role", tag="assistant"):
    content: str | list[AssistantBlock]


class MessagesSystemMessage(Struct, frozen=True, tag_field="role", tag="system"):
    """A system prompt in the middle of a conversation."""

    content: str | list[TextBlock]


MessagesMessageParam = MessagesUserMessage | MessagesAssistantMessage | MessagesSystemMessage


class MessagesTool(Struct, frozen=True):
    """A tool of the client's own; one with another `type` is somebody's hosted tool."""

    type: Annotated[str, Meta(max_length=256)] | None = None
    name: _ToolName | None = None
    description: str | None = None
    input_schema: _MaybeObject = field(default_factory=_absent)
    strict: bool | None = None
    allowed_callers: Annotated[list[str], Meta(max_length=64)] | None = None


class AutoChoice(Struct, frozen=True, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, frozen=True, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool | None = None


class NamedChoice(Struct, frozen=True, tag_field="type", tag="tool"):
    name: _ToolName
    disable_parallel_tool_use: bool | None = None


class NoChoice(Struct, frozen=True, tag_field="type", tag="none"):
    pass


_Display = Literal["summarized", "omitted"]


class EnabledThinking(Struct, frozen=True, tag_field="type", tag="enabled"):
    budget_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    display: _Display | None = None


class AdaptiveThinking(Struct, frozen=True, tag_field="type", tag="adaptive"):
    """As much reasoning as the model wants."""

    display: _Display | None = None


class ToolThinking(Struct, frozen=True, tag_field="type", tag="between_tools"):
    """As much reasoning as the model wants, around its calls."""


class DisabledThinking(Struct, frozen=True, tag_field="type", tag="disabled"):
    pass


class OutputFormat(Struct, frozen=True, tag_field="type", tag="json_schema"):
    """The format of the answer's text."""

    schema: _JsonObject


class OutputConfig(Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: _MaybeObject = field(default_factory=_absent)


_Messages = Annotated[list[MessagesMessageParam], Meta(min_length=1, max_length=100_000)]
_Tools = Annotated[list[MessagesTool], Meta(max_length=1024)]
ToolChoice = AutoChoice | AnyChoice | NamedChoice | NoChoice
_ThinkingConfig = EnabledThinking | AdaptiveThinking | ToolThinking | DisabledThinking


class MessagesBody(SamplingFields, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`; sampling in OpenAI's words is understood besides Anthropic's own."""

    model: ModelName
    messages: _Messages
    max_tokens: AnswerLength
    system: str | list[TextBlock] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=16)] | None = None
    thinking: _ThinkingConfig | None = None
    tools: _Tools | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class CountBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`: what of a message makes its prompt."""

    model: ModelName
    messages: _Messages
    system: str | list[TextBlock] | None = None
    thinking: _ThinkingConfig | None = None
    tools: _Tools | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
