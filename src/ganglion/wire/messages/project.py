"""Projects the events of an answer into the events of a Messages stream.

Law: a block goes out once it holds something, so that no client is handed an empty one that it would have to
send back; indices count what went out.
"""

from collections.abc import Iterator
from typing import Any, assert_never

import msgspec

from ganglion.core.events import (
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    Opened,
    Progress,
    Scored,
    Started,
    Usage,
)
from ganglion.core.fold import Answer
from ganglion.wire.frame import Frame
from ganglion.wire.messages.errors import encode_error
from ganglion.wire.messages.message_object import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Content,
    CountTokensReply,
    InputJsonDelta,
    MessageDelta,
    MessageEvent,
    MessageObject,
    MessagePing,
    MessagesReplyContext,
    MessageStart,
    MessageStop,
    SignatureDelta,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    ToolUseContent,
    delta_usage_of,
    ending_of,
    usage_of,
)
from ganglion.wire.messages.messages_tools import tool_use_id

_input: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


def body(answer: Answer, reply: MessagesReplyContext) -> bytes:
    """The whole answer."""
    ending = ending_of(answer.finished)
    message = MessageObject(
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
    return _encode(CountTokensReply(input_tokens))


def _content(answer: Answer, reply: MessagesReplyContext) -> Iterator[Content]:
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


_encode = msgspec.json.Encoder().encode
_NO_INPUT = msgspec.Raw(b"{}")
_PING = Frame(_encode(MessagePing()), "ping")
_STOP = Frame(_encode(MessageStop()), "message_stop")


class MessagesProjection:
    """Feed it every event; `is_done` says that its last frame is out."""

    def __init__(self, reply: MessagesReplyContext) -> None:
        self._reply = reply
        self._opened: Opened | None = None
        self._is_block_out = False
        self._index = -1
        self._thoughts: list[str] = []
        self.is_done = False

    def feed(self, event: Event, choice: int = 0) -> list[Frame]:
        """The frames that this event adds; none once the stream is done."""
        if self.is_done:
            return []
        match event:
            case Delta(text=text):
                return self._more(text) if text else []
            case Started(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens):
                return [self._start(Usage(prompt_tokens, 0, cached_tokens)), _PING]
            case Opened() | Closed():
                return self._open(event) if isinstance(event, Opened) else self._close()
            case Progress() | Scored():
                return []
            case Finished() | Failed():
                self.is_done = True
                return self._end(event)
            case _:
                assert_never(event)

    def tick(self) -> list[Frame]:
        """A sign of life, which may also come first: the prompt's usage is not known while it waits."""
        return [_PING]

    def _start(self, usage: Usage) -> Frame:
        message = MessageObject(
            id=self._reply.id,
            model=self._reply.model,
            content=(),
            stop_reason=None,
            stop_sequence=None,
            usage=usage_of(usage),
        )
        return _framed("message_start", MessageStart(message))

    def _open(self, opened: Opened) -> list[Frame]:
        self._opened = opened
        self._is_block_out = False
        self._thoughts = []
        if opened.kind != "tool_call":
            return []
        identity = tool_use_id(opened.call_id or "")
        return [self._out(ToolUseContent(identity, opened.name or "", _NO_INPUT))]

    def _more(self, text: str) -> list[Frame]:
        assert self._opened is not None
        match self._opened.kind:
            case "text":
                begun = [] if self._is_block_out else [self._out(TextContent(""))]
                return [*begun, self._delta(BlockDelta(self._index, TextDelta(text)))]
            case "reasoning":
                begun = [] if self._is_block_out else [self._out(ThinkingContent("", ""))]
                if self._reply.is_thinking_omitted:
                    return begun
                self._thoughts.append(text)
                return [*begun, self._delta(BlockDelta(self._index, ThinkingDelta(text)))]
            case "tool_call":
                return [self._delta(BlockDelta(self._index, InputJsonDelta(text)))]
            case _:
                assert_never(self._opened.kind)

    def _close(self) -> list[Frame]:
        assert self._opened is not None
        if not self._is_block_out:
            return []
        frames = [_framed("content_block_stop", BlockStop(self._index))]
        if self._opened.kind == "reasoning":
            sealed = self._reply.seal.sign(self._reply.tenant, "".join(self._thoughts))
            frames.insert(0, self._delta(BlockDelta(self._index, SignatureDelta(sealed))))
        return frames

    def _end(self, event: Finished | Failed) -> list[Frame]:
        if isinstance(event, Failed):
            return [Frame(encode_error(event.error, self._reply.request_id), "error")]
        ending = MessageDelta(ending_of(event), delta_usage_of(event.usage))
        return [_framed("message_delta", ending), _STOP]

    def _out(self, content: Content) -> Frame:
        self._index += 1
        self._is_block_out = True
        return _framed("content_block_start", BlockStart(self._index, content))

    def _delta(self, delta: BlockDelta) -> Frame:
        return _framed("content_block_delta", delta)


def _framed(name: str, event: MessageEvent) -> Frame:
    return Frame(_encode(event), name)
