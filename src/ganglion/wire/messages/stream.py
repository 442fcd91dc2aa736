"""Events of one answer to the events of a Messages stream.

Law: a block goes out once it holds something, so that no client is handed an empty one that it would have to
send back; indices count what went out.
"""

from typing import assert_never

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
from ganglion.wire.frame import Frame
from ganglion.wire.messages.ids import tool_use_id
from ganglion.wire.messages.refusal import told
from ganglion.wire.messages.reply import (
    AnsweredMessage,
    BlockDelta,
    BlockStart,
    BlockStop,
    Content,
    InputDelta,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    Ping,
    Reply,
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

_encode = msgspec.json.Encoder().encode
_NO_INPUT = msgspec.Raw(b"{}")
_PING = Frame(_encode(Ping()), "ping")
_STOP = Frame(_encode(MessageStop()), "message_stop")


class MessagesProjection:
    """Feed it every event; `is_done` says that its last frame is out."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._opened: Opened | None = None
        self._is_block_out = False
        self._index = -1
        self._thoughts: list[str] = []
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """Whether `message_stop` or an error has been handed out."""
        return self._is_done

    def feed(self, event: Event, choice: int = 0) -> list[Frame]:
        """The frames that this event adds; none once the stream is done."""
        if self._is_done:
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
                self._is_done = True
                return self._end(event)
            case _:
                assert_never(event)

    def tick(self) -> list[Frame]:
        """A sign of life, which may also come first: the prompt's usage is not known while it waits."""
        return [_PING]

    def _start(self, usage: Usage) -> Frame:
        message = AnsweredMessage(
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
                return [self._delta(BlockDelta(self._index, InputDelta(text)))]
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
            return [Frame(told(event.error, self._reply.request_id), "error")]
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
