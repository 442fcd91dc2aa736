"""The schema of Responses bodies, with the bounds of every field.

Null means the same as absent everywhere. Items and tools are read one by one, by their type, so that what is
wrong with one of them is told with its place.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from ganglion.core.request import Effort
from ganglion.wire.fields import MAX_TOKENS, AnswerLength, ModelName, SamplingFields
from ganglion.wire.responses.items import ItemId, Name

_MAX_ITEMS = 16384
_MAX_TOOLS = 1024

_ShortText = Annotated[str, Meta(max_length=512)]
_Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
_Input = str | Annotated[list[Raw], Meta(max_length=_MAX_ITEMS)]
_Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
_Summary = Literal["auto", "concise", "detailed", "none"]


class ResponsesStreamOptions(Struct, frozen=True):
    """Options of a stream; obfuscation pads events against eavesdroppers, and we send none."""

    include_obfuscation: bool | None = None


class ConversationReference(Struct, frozen=True):
    id: ItemId


class ResponsesReasoningOptions(Struct, frozen=True):
    """Options of reasoning; summaries are echoed and not made, since reasoning is sent in full."""

    effort: Effort | None = None
    summary: _Summary | None = None
    generate_summary: _Summary | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard"] | None = None


class ResponsesTextFormat(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class ResponsesJsonObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object"):
    """Some JSON object."""


class ResponsesJsonSchemaFormat(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="json_schema"
):
    """JSON that a schema accepts; it is enforced, strict or not."""

    name: Name
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


Verbosity = Literal["low", "medium", "high"]
ResponsesFormat = ResponsesTextFormat | ResponsesJsonObjectFormat | ResponsesJsonSchemaFormat


class ResponsesTextOptions(Struct, frozen=True):
    format: ResponsesFormat | None = None
    verbosity: Verbosity | None = None


class ContextManagement(Struct, frozen=True):
    """When to compact by itself."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None


class PromptCacheOptions(Struct, frozen=True):
    """Hints for a cache that decides by itself; what would change the answer is refused."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: _ShortText | None = None
    prewarm: bool | None = None
    comparison_response_id: ItemId | None = None


class ResponsesBody(SamplingFields, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`, and of `POST /v1/responses/input_tokens`."""

    model: ModelName
    input: _Input | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: ItemId | None = None
    conversation: ItemId | ConversationReference | None = None
    tools: Annotated[list[Raw], Meta(max_length=_MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    max_output_tokens: AnswerLength | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    text: ResponsesTextOptions | None = None
    reasoning: ResponsesReasoningOptions | None = None
    include: Annotated[list[_Includable], Meta(max_length=64)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: Annotated[list[ContextManagement], Meta(max_length=8)] | None = None
    metadata: _Metadata | None = None
    service_tier: _ShortText | None = None
    safety_identifier: _ShortText | None = None
    prompt_cache_key: _ShortText | None = None
    prompt_cache_retention: _ShortText | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    user: _ShortText | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompactBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/responses/compact`."""

    model: ModelName
    input: _Input | None = None
    instructions: str | None = None
    previous_response_id: ItemId | None = None
    prompt_cache_key: _ShortText | None = None
    service_tier: _ShortText | None = None


class ConversationBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations`."""

    items: Annotated[list[Raw], Meta(max_length=_MAX_ITEMS)] | None = None
    metadata: _Metadata | None = None


class ConversationUpdateBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations/{id}`."""

    metadata: _Metadata | None


class ItemsBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations/{id}/items`."""

    items: Annotated[list[Raw], Meta(min_length=1, max_length=_MAX_ITEMS)]
