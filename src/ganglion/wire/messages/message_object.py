"""The schema of Messages answers, streamed or whole."""

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Raw, Struct, convert

from ganglion.core.events import Finished, Usage
from ganglion.wire.seal import HmacSeal

_StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


@dataclass(frozen=True, slots=True)
class MessagesReplyContext:
    """The fields that all events of one answer share, and the options of its client."""

    id: str
    model: str
    request_id: str
    tenant: str
    seal: HmacSeal = field(repr=False)
    is_thinking_omitted: bool = False
    """Reasoning is announced and sealed, and its text kept back."""


class CacheCreation(Struct, frozen=True):
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True):
    thinking_tokens: int


class MessageUsage(Struct, frozen=True, kw_only=True):
    """Tokens read and written; the three kinds of input tokens add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    cache_creation: CacheCreation = CacheCreation()
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    service_tier: Literal["standard"] = "standard"


class DeltaUsage(Struct, frozen=True, kw_only=True):
    """The usage so far, at the end of a stream."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails


class TextContent(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ThinkingContent(Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseContent(Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw


Content = TextContent | ThinkingContent | ToolUseContent


class MessageObject(Struct, frozen=True, kw_only=True):
    """A whole answer, and the empty one that a stream begins with."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[Content, ...]
    stop_reason: _StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class CountTokensReply(Struct, frozen=True):
    """The body of a count."""

    input_tokens: int


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    message: MessageObject


class BlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Content


class TextDelta(Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, frozen=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int


class MessageEnding(Struct, frozen=True):
    stop_reason: _StopReason
    stop_sequence: str | None


class MessageDelta(Struct, frozen=True, tag_field="type", tag="message_delta"):
    delta: MessageEnding
    usage: DeltaUsage


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    pass


class MessagePing(Struct, frozen=True, tag_field="type", tag="ping"):
    pass


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | MessagePing


def ending_of(finished: Finished) -> MessageEnding:
    """Why the answer ended, as this wire tells it."""
    match finished.reason:
        case "tool_calls":
            return MessageEnding("tool_use", None)
        case "length":
            return MessageEnding("max_tokens", None)
        case "stop":
            matched = finished.stop_sequence
            return MessageEnding("end_turn" if matched is None else "stop_sequence", matched)


def usage_of(usage: Usage) -> MessageUsage:
    """Token counts: what the cache held is told apart from what had to be read."""
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(usage.reasoning_tokens),
    )


def delta_usage_of(usage: Usage) -> DeltaUsage:
    """The same counts for the end of a stream."""
    return convert(usage_of(usage), DeltaUsage, from_attributes=True)
