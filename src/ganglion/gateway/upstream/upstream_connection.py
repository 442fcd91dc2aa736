"""One connection to a node: requests out, responses in, one at a time.

Law: a sink gets `head`, then `body` until `is_end`, or `lost` at any point, and nothing after either. What
one read brought is passed on in one call, so that it can leave in one write. Bytes that were not requested
end the connection: they would be taken for the next request's response.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from ganglion.gateway.upstream.write_coalescer import WriteCoalescer

MAX_HEAD_BYTES = 64 * 2**10

Headers = list[tuple[bytes, bytes]]


class _ResponseSink(Protocol):
    """Receives a response; names of headers are in lower case."""

    def head(self, status: int, headers: Headers) -> None:
        """The response begins."""

    def body(self, data: bytes, *, is_end: bool) -> None:
        """More of its body, which may be empty, and whether that is all."""

    def lost(self, error: Exception | None) -> None:
        """The connection ended before the response did."""


class UpstreamConnection(asyncio.Protocol):
    """A connection that is kept open between requests; `on_idle` is called when it is free, or gone.

    The methods named `on_...` without a docstring are called by the parser.
    """

    def __init__(self, on_idle: Callable[["UpstreamConnection"], None], writes: WriteCoalescer) -> None:
        self._on_idle = on_idle
        self._writes = writes
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        # What the parser calls for each chunk: the list itself, since a burst has a hundred of them.
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._sink: _ResponseSink | None = None
        self._reset()
        self.requests = 0
        """How many requests it has carried: the first one cannot have met a connection that was closing."""
        self.idle_since_s = 0.0
        self.on_full: Callable[[bool], None] | None = None
        """Called with True when writes pile up unsent, and with False when they no longer do."""
        self._is_tunnel = False

    def _reset(self) -> None:
        self._headers: Headers = []
        self._head_bytes = 0
        self._has_head = False
        self._is_over = False
        self._is_kept = False
        self._is_bodiless = False
        self._has_excess = False
        self._whole = 0
        """How many of the parts belong to a response that is over."""
        self._parts.clear()

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent on it."""
        return self._sink is None and self._transport is not None and not self._transport.is_closing()

    @property
    def is_stale(self) -> bool:
        """Whether it has carried other requests, and nothing has come of this one."""
        return self.requests > 1 and not self._head_bytes

    def request(self, data: bytes, sink: _ResponseSink) -> None:
        """Send a whole request, whose response goes to the sink."""
        assert self._sink is None and self._transport is not None
        self._sink = sink
        self._is_bodiless = data.startswith(b"HEAD ")
        self.requests += 1
        self._writes.send(self._transport, data)

    def write(self, data: bytes) -> None:
        """More bytes of what was upgraded to another protocol."""
        if self._transport is not None:
            self._writes.send(self._transport, data)

    def pause(self) -> None:
        """Read no more until `resume`: the reader of the response does not keep up."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Cut it; the sink gets nothing more. A node takes that as the client's leaving."""
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close it when nothing is under way."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are, and do not say so

    def pause_writing(self) -> None:
        if self.on_full is not None:
            self.on_full(True)

    def resume_writing(self) -> None:
        if self.on_full is not None:
            self.on_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        sink, self._sink = self._sink, None
        self._transport = None
        # Gone before the sink hears of it: it may want another connection at once.
        self._on_idle(self)
        if sink is not None:
            # A body without a length ends with its connection; any other was cut.
            if exc is None and self._has_head and not self._is_framed() and not self._is_tunnel:
                sink.body(b"", is_end=True)
            else:
                sink.lost(exc)

    def _is_framed(self) -> bool:
        """Whether the response says itself where it ends."""
        if self._parser.get_status_code() in (204, 304):
            return True
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    def data_received(self, data: bytes) -> None:
        if self._is_tunnel:
            if self._sink is not None:
                self._sink.body(data, is_end=False)
            return
        if self._sink is None:
            self._fail(None)
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._is_tunnel = True
            rest = data[upgrade.args[0] :]
            if rest and self._sink is not None:
                self._sink.body(rest, is_end=False)
            return
        except httptools.HttpParserError as error:
            if not self._is_over:
                self._fail(error)
                return
            self._has_excess = True  # what came before it is whole
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(ValueError("The head of the response is too large."))
            return
        self._hand_over()

    def _hand_over(self) -> None:
        is_over = self._is_over
        parts = self._parts[: self._whole] if is_over else self._parts
        if self._sink is None or (not parts and not is_over):
            return
        sink = self._sink
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts.clear()
        if not is_over:
            sink.body(data, is_end=False)
            return
        is_kept = self._is_kept and not self._has_excess
        self._sink = None
        self._reset()
        if not is_kept:
            self.close()
        # Free before the sink gets the end: it may have the next request at hand.
        self._on_idle(self)
        sink.body(data, is_end=True)

    def _fail(self, error: Exception | None) -> None:
        sink, self._sink = self._sink, None
        if self._transport is not None:
            self._transport.abort()
        if sink is not None:
            sink.lost(error)

    def on_message_begin(self) -> None:
        self._has_excess = self._is_over

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:  # a trailer, whose time is over
            return
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._has_head or (100 <= status < 200 and status != 101):
            return
        self._has_head = True
        if self._sink is not None:
            self._sink.head(status, self._headers)
        # The parser cannot know that the length is of a body that does not come.
        self._is_over = self._is_bodiless

    def on_message_complete(self) -> None:
        if self._has_head and not self._is_over:
            self._is_over = True
            self._whole = len(self._parts)
            self._is_kept = self._parser.should_keep_alive()  # which it forgets when this returns
        elif not self._has_head:  # 100 Continue and its like: the response itself is still to come
            self._headers = []
            self._parts.clear()
