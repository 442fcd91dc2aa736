"""Projects the events of an answer into the lines of a stream, and a finished answer into one body."""

from typing import assert_never

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
    Token,
)
from ganglion.core.fold import Answer
from ganglion.wire.frame import Comment, Frame, Framing
from ganglion.wire.ollama.errors import encode_error
from ganglion.wire.ollama.schema import (
    DoneReason,
    OllamaEnding,
    OllamaPart,
    OllamaReplyContext,
    OllamaReplyToolCall,
    call_of,
    encode_line,
    end_of,
)

# JSON lets these stand in a string as they are, and Python's client takes each for the end of its line.
_LINE_ENDS = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))


def _ndjson(frame: Frame | Comment) -> bytes:
    """The frame as it goes over the socket; there are no comments on this wire."""
    if isinstance(frame, Comment):
        return b""
    data = frame.data
    for end, escaped in _LINE_ENDS:
        data = data.replace(end, escaped)
    return data + b"\n"


NDJSON = Framing(b"application/x-ndjson", _ndjson)


class OllamaProjection:
    """Feed it every event of the answer; `is_done` says that its last line is out."""

    def __init__(self, reply: OllamaReplyContext) -> None:
        self._reply = reply
        self._opened: Opened | None = None
        self._arguments: list[str] = []
        self._calls = 0
        self.is_done = False

    def feed(self, event: Event, choice: int = 0) -> list[Frame]:
        """The lines that this event adds; none once the stream is done."""
        if self.is_done:
            return []
        match event:
            case Delta(text=text, tokens=tokens):
                return self._more(text, tokens)
            case Opened():
                self._opened, self._arguments = event, []
                return []
            case Closed():
                return self._close()
            case Progress() | Started() | Scored():
                return []
            case Finished() | Failed():
                self.is_done = True
                return [Frame(self._last(event))]
            case _:
                assert_never(event)

    def tick(self) -> list[Frame]:
        """A line that says nothing yet.

        A blank line would not do: clients parse every line, and an idle timer of theirs counts lines. A part
        with empty content is what Ollama itself sends while a model thinks, so every client adds nothing.
        """
        return [Frame(encode_line(self._reply, OllamaPart()))]

    def _last(self, event: Finished | Failed) -> bytes:
        if isinstance(event, Failed):
            return encode_error(event.error)
        return encode_line(self._reply, OllamaPart(), end_of(event))

    def _more(self, text: str, tokens: tuple[Token, ...]) -> list[Frame]:
        kind = "text" if self._opened is None else self._opened.kind
        match kind:
            case "tool_call":
                self._arguments.append(text)
                return []
            case "text":
                part = OllamaPart(text=text, tokens=tokens)
            case "reasoning":
                part = OllamaPart(thinking=text, tokens=tokens)
            case _:
                assert_never(kind)
        has_logprobs = self._reply.has_logprobs and any(token.logprob is not None for token in tokens)
        return [Frame(encode_line(self._reply, part))] if text or has_logprobs else []

    def _close(self) -> list[Frame]:
        opened, self._opened = self._opened, None
        if opened is None or opened.kind != "tool_call":
            return []
        arguments = "".join(self._arguments)
        call = call_of(self._calls, opened.call_id, opened.name, arguments)
        if call is None:
            return [Frame(encode_line(self._reply, OllamaPart(text=arguments)))]
        self._calls += 1
        return [Frame(encode_line(self._reply, OllamaPart(calls=(call,))))]


def body(answer: Answer, reply: OllamaReplyContext) -> bytes:
    """The whole answer: what its stream's lines add up to."""
    texts: list[str] = []
    calls: list[OllamaReplyToolCall] = []
    tokens: list[Token] = []
    for block in answer.blocks:
        if block.kind != "tool_call":
            tokens += block.tokens
            texts += [block.text] if block.kind == "text" else []
            continue
        call = call_of(len(calls), block.call_id, block.name, block.text)
        if call is None:
            texts.append(block.text)
        else:
            calls.append(call)
    part = OllamaPart("".join(texts), answer.text("reasoning"), tuple(calls), tuple(tokens))
    return encode_line(reply, part, end_of(answer.finished))


def empty_reply(reply: OllamaReplyContext, reason: DoneReason) -> bytes:
    """The answer to a request that only loads or unloads a model."""
    return encode_line(reply, OllamaPart(), OllamaEnding(done_reason=reason))
