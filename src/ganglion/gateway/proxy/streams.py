"""Streams of upstreams as they pass: whole events only, counted, and without what only the gateway asked for.

Law: whatever the splits, the client gets the upstream's own bytes, less the usage that it did not ask for.
"""

import re

from ganglion.core.errors import InvalidRequest, UpstreamUnavailable
from ganglion.core.events import Usage
from ganglion.wire.fleet import parse_usage
from ganglion.wire.headers import USAGE
from ganglion.wire.proxy_dialect import ProxyDialect, StreamMarks
from ganglion.wire.proxy_usage import usage_of_body

MAX_EVENT_BYTES = 8 * 2**20
_COMMENT = b": " + USAGE + b" "
_TAIL_BYTES = 512
_LAST_EVENT_BYTES = 4096
"""More than any event that begins or ends a stream, an error's message included."""
_BLANK = re.compile(rb"\r\n\r\n|\n\n|\n\r\n|\r\n\n|\r\r")
"""The end of an event: lines end in CR, LF or both, as each server likes."""
_LINE_ENDS = re.compile(rb"\r\n|\n|\r")
_BURST_BYTES = 4096
"""Beyond, lines are counted: looking for words takes eight times as long, and nobody is silent in a burst."""
_ENDING = 2
"""Events with which a whole OpenAI stream ends, and which say nothing: the reason, and [DONE]."""
_TEXT_FIELD = re.compile(rb'"(?:content|reasoning_content|reasoning|text|arguments)" ?: ?"[^"]')


class _EventBuffer:
    """Bytes held until a boundary, without joining them at each read."""

    __slots__ = ("_parts", "_size_bytes", "_tail")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._tail = b""

    def hold(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._size_bytes += len(data)
            self._tail = (self._tail + data)[-3:]
            if self._size_bytes > MAX_EVENT_BYTES:
                raise UpstreamUnavailable(f"The node sent an event of more than {MAX_EVENT_BYTES} bytes.")

    def joined(self, data: bytes) -> bytes:
        data = b"".join((*self._parts, data))
        self._parts.clear()
        self._size_bytes, self._tail = 0, b""
        return data

    @property
    def tail(self) -> bytes:
        return self._tail

    def __bool__(self) -> bool:
        return bool(self._parts)


def _end_of_events(data: bytes) -> int:
    """How much of it is whole events."""
    if data.endswith(b"\n\n"):
        return len(data)
    if b"\r" in data:
        return max((blank.end() for blank in _BLANK.finditer(data)), default=0)
    return data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0


class _EventStream:
    """Whole server-sent events; what is done with them is for those below."""

    __slots__ = ("_ends", "_first", "_held", "_said", "_saying", "_tail", "_usual_end", "events", "usage")
    has_events = True
    """Whether an error can be an event of it."""

    def __init__(self, marks: StreamMarks) -> None:
        self._ends = marks.ends
        self._usual_end = marks.usual_end
        self._saying = marks.text
        self._said = 0
        self._first = b""
        """Where the first event stands, which may say only who speaks."""
        self.events = 0
        """Lines of data, or pairs of lines in a burst."""
        self._held = _EventBuffer()
        self._tail = b""
        self.usage: Usage | None = None
        """As far as the stream has said it."""

    @property
    def said(self) -> int:
        """About how many tokens passed: events that say something, and no envelopes or signs of life."""
        if self._saying is not None:
            return self._said
        return max(0, self.events - _is_opening(self._first) - (_ENDING if self.is_finished else 0))

    def feed(self, data: bytes) -> bytes:
        """What may leave now; raises UpstreamUnavailable for an event that has no end."""
        if not data:
            return b""
        held = self._held
        if held:
            if not _end_of_events(held.tail + data):
                held.hold(data)
                return b""
            data = held.joined(data)
        end = _end_of_events(data)
        if end != len(data):
            held.hold(data[end:])
            if not end:
                return b""
            data = data[:end]
        if not self.events:
            self._first = data[:_LAST_EVENT_BYTES]
        self.events += self._count(data)
        if self._saying is not None:
            self._said += data.count(self._saying)
        return self._read(data)

    def _count(self, data: bytes) -> int:
        has_returns = b"\r" in data
        if len(data) > _BURST_BYTES and self._saying is None and not has_returns:
            # Two lines an event; what stands in a burst and is none is the counts at its end.
            return data.count(b"\n") // 2 - data.count(b"\n:", len(data) - _TAIL_BYTES)
        count = data.count(b"\ndata:") + data.startswith(b"data:")
        return count + data.count(b"\rdata:") if has_returns else count

    def end(self) -> bytes:
        """What is left at the end."""
        return self._held.joined(b"")

    def _read(self, data: bytes) -> bytes:
        raise NotImplementedError

    @property
    def is_finished(self) -> bool:
        """Whether the wire's own last event came, or nothing says that one should."""
        tail = self._tail
        if self._usual_end is not None and tail.endswith(self._usual_end):
            return True
        is_ended = tail.startswith(self._ends) or any(b"\n" + end in tail for end in self._ends)
        if not is_ended and b"\r" in tail:
            is_ended = any(b"\r" + end in tail for end in self._ends)
        return is_ended or _is_error(tail)


class NodeEventStream(_EventStream):
    """Of a node of ours or the control app: usage is the very last event, a comment.

    The control app is this very process, and its end the end. A node's is looked for: whoever stands between
    may take the death of a node for the end of its answer.
    """

    __slots__ = ("_is_control_app",)

    def __init__(self, marks: StreamMarks, *, is_control_app: bool = False) -> None:
        super().__init__(marks)
        self._is_control_app = is_control_app

    def _read(self, data: bytes) -> bytes:
        self._tail = data[-_LAST_EVENT_BYTES:]
        if not data.endswith(b"}\n\n"):
            return data
        last = data.rfind(b"\n\n", 0, len(data) - 2)
        start = 0 if last < 0 else last + 2
        if not data.startswith(_COMMENT, start):
            return data
        try:
            self.usage = parse_usage(data[start + len(_COMMENT) : -2])
        except InvalidRequest:
            return data
        return data[:start]

    @property
    def is_finished(self) -> bool:
        return self._is_control_app or self.usage is not None or super().is_finished


class ForeignEventStream(_EventStream):
    """Of somebody else's server: usage is in a chunk of its own, and its end is not taken on trust."""

    __slots__ = ("_is_finished", "_read_usage", "_takes_usage", "_usage_marks")

    def __init__(self, dialect: ProxyDialect, *, takes_usage: bool) -> None:
        super().__init__(dialect.marks)
        self._usage_marks = dialect.marks.usage
        self._read_usage = dialect.read_usage
        self._takes_usage = takes_usage
        self._is_finished = False

    def _read(self, data: bytes) -> bytes:
        for mark in self._usage_marks:
            at = data.find(mark)
            while at >= 0:
                start, end = _event_at(data, at)
                if self._is_ours_alone(data[start:end]):
                    data = data[:start] + data[end:]
                    end = start
                at = data.find(mark, end)
        if data and not self._is_finished:
            self._tail = data[-_LAST_EVENT_BYTES:]
            self._is_finished = super().is_finished
        return data

    def end(self) -> bytes:
        return self._read(super().end())

    def _is_ours_alone(self, event: bytes) -> bool:
        """Note what an event says of usage, and whether it says nothing else."""
        reading = self._read_usage(_data_of(event), self.usage)
        if reading is None:
            return False
        self.usage = reading.usage
        return self._takes_usage and reading.is_all

    @property
    def is_finished(self) -> bool:
        return self._is_finished


def _is_opening(data: bytes) -> bool:
    """Whether the first of these events names a role, and nothing that was said."""
    start = data.find(b"data:")
    end = data.find(b"\n", start)
    first = data[start : end if end > 0 else len(data)] if start >= 0 else b""
    return b'"role"' in first and _TEXT_FIELD.search(first) is None


def _event_at(data: bytes, at: int) -> tuple[int, int]:
    """Where the event around a position begins and ends; the data is whole events."""
    if b"\r" not in data:
        before, after = data.rfind(b"\n\n", 0, at), data.find(b"\n\n", at)
        return before + 2 if before >= 0 else 0, after + 2 if after >= 0 else len(data)
    start = 0
    for blank in _BLANK.finditer(data):
        if blank.start() >= at:
            return start, blank.end()
        start = blank.end()
    return start, len(data)


def _data_of(event: bytes) -> bytes:
    lines = _LINE_ENDS.split(event)
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))


def _is_error(tail: bytes) -> bool:
    """Whether the last event tells of an error: that too is an end."""
    last = tail.rstrip()
    line = last[max(last.rfind(b"\n"), last.rfind(b"\r")) + 1 :]
    return line.startswith((b'data: {"error"', b'data: {"type":"error"', b'data:{"error"', b"error:"))


class JsonLineStream:
    """JSON, a line each: the last one has the counts."""

    __slots__ = ("_empty", "_held", "_is_control_app", "_last", "_marks", "_read_usage", "events", "usage")
    has_events = True

    def __init__(self, dialect: ProxyDialect, *, is_control_app: bool = False) -> None:
        self._marks = dialect.marks
        self._read_usage = dialect.read_usage
        self._is_control_app = is_control_app
        self._held = _EventBuffer()
        self._last = b""
        self.usage: Usage | None = None
        self.events = 0
        self._empty = 0

    def feed(self, data: bytes) -> bytes:
        end = data.rfind(b"\n") + 1
        if not end:
            self._held.hold(data)
            return b""
        whole = self._held.joined(data[:end]) if self._held else data[:end]
        self._held.hold(data[end:])
        self.events += whole.count(b"\n")
        marks = self._marks
        self._empty += sum(map(whole.count, marks.empty))
        if marks.thought is not None:
            self._empty -= whole.count(marks.thought)
        self._last = whole[whole.rfind(b"\n", 0, -1) + 1 :]
        for mark in marks.usage:
            if mark in whole:
                reading = self._read_usage(self._last, self.usage)
                self.usage = self.usage if reading is None else reading.usage
                break
        return whole

    def end(self) -> bytes:
        return self._held.joined(b"")

    @property
    def said(self) -> int:
        return max(0, self.events - max(0, self._empty))

    @property
    def is_finished(self) -> bool:
        return self._is_control_app or any(end in self._last for end in self._marks.ends)


class OpaqueBody:
    """Any other body that is too large to hold: only its last part is looked at."""

    __slots__ = ("_read_usage", "_tail", "events", "said", "usage")
    has_events = False

    def __init__(self, dialect: ProxyDialect) -> None:
        self._read_usage = dialect.read_usage
        self._tail = b""
        self.usage: Usage | None = None
        self.events = self.said = 0

    def feed(self, data: bytes) -> bytes:
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        return data

    def end(self) -> bytes:
        self.usage = usage_of_body(self._tail, self._read_usage)
        return b""

    @property
    def is_finished(self) -> bool:
        return True


StreamFilter = NodeEventStream | ForeignEventStream | JsonLineStream | OpaqueBody
"""A stream on its way through."""
