"""A finished answer to one Messages body, and a count to its own."""

from collections.abc import Iterator
from typing import Any, assert_never

import msgspec

from ganglion.core.fold import Answer
from ganglion.wire.messages.ids import tool_use_id
from ganglion.wire.messages.reply import (
    AnsweredMessage,
    Content,
    Reply,
    TextContent,
    ThinkingContent,
    TokenCount,
    ToolUseContent,
    ending_of,
    usage_of,
)

_encode = msgspec.json.Encoder().encode
_input: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_NO_INPUT = msgspec.Raw(b"{}")


def body(answer: Answer, reply: Reply) -> bytes:
    """The whole answer."""
    ending = ending_of(answer.finished)
    message = AnsweredMessage(
        id=reply.id,
        model=reply.model,
        content=tuple(_content(answer, reply)),
        stop_reason=ending.stop_reason,
        stop_sequence=ending.stop_sequence,
        usage=usage_of(answer.finished.usage),
    )
    return _encode(message)


def count_body(input_tokens: int) -> bytes:
    """The body of a count."""
    return _encode(TokenCount(input_tokens))


def _content(answer: Answer, reply: Reply) -> Iterator[Content]:
    for block in answer.blocks:
        match block.kind:
            case "text":
                if block.text:
                    yield TextContent(block.text)
            case "reasoning":
                if block.text:
                    shown = "" if reply.is_thinking_omitted else block.text
                    yield ThinkingContent(shown, reply.seal.sign(reply.tenant, shown))
            case "tool_call":
                identity = tool_use_id(block.call_id or "")
                yield ToolUseContent(identity, block.name or "", _arguments(block.text))
            case _:
                assert_never(block.kind)


def _arguments(text: str) -> msgspec.Raw:
    """A call's arguments; those of a call that was cut before they were whole are left out."""
    encoded = text.encode()
    try:
        _input.decode(encoded)
    except (msgspec.DecodeError, RecursionError):
        return _NO_INPUT
    return msgspec.Raw(encoded)
