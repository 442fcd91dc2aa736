"""The answer to one client: heads, framing and endings, each as one write.

Law: once a byte has left, the answer ends as its wire ends one that failed, or the connection is cut.
"""

from time import perf_counter
from typing import TYPE_CHECKING

from ganglion.core.errors import GanglionError, ShuttingDown
from ganglion.gateway.proxy import heads
from ganglion.gateway.proxy.attempt import NodeAttempt
from ganglion.gateway.proxy.authorize import RequestContext
from ganglion.gateway.upstream.upstream_connection import Headers
from ganglion.wire.error_format import error_headers

if TYPE_CHECKING:
    from ganglion.gateway.proxy.client_connection import ClientConnection
    from ganglion.gateway.proxy.listener import ProxyListener

_EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


class ClientReply:
    """The answer to one request, as far as it has left."""

    __slots__ = (
        "_connection",
        "_context",
        "_is_bare",
        "_is_chunked",
        "_is_events",
        "_listener",
        "began_s",
        "has_begun",
        "has_streamed",
        "is_kept",
        "status",
    )

    def __init__(
        self, listener: "ProxyListener", connection: "ClientConnection", context: RequestContext
    ) -> None:
        self._listener = listener
        self._connection = connection
        self._context = context
        self._is_bare = context.call.head.method == b"HEAD"
        self._is_chunked = False
        self._is_events = False
        self.began_s = perf_counter()
        self.has_begun = False
        """Whether the head has left, with or without anything of an answer."""
        self.has_streamed = False
        """Whether anything of a stream has left: until then another node may give it."""
        self.is_kept = context.call.head.is_kept
        """Whether the connection may carry another request after this one."""
        self.status = 0

    @property
    def is_stream(self) -> bool:
        """Whether the client was promised a stream of events."""
        return self.has_begun and self._is_events

    @property
    def is_given_out(self) -> bool:
        """Whether the client has got anything that no other node could go on from."""
        return self.has_streamed or (self.has_begun and not self._is_events)

    def deliver(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer."""
        self.status = status
        has_body = status not in (204, 304)
        framing = b"content-length: %d\r\n" % len(body) if has_body else b""
        head = heads.response_head(status, headers, self._own(framing))
        self._send(head + body if has_body and not self._is_bare else head)

    def refuse(self, error: GanglionError) -> None:
        """An error, before the first byte."""
        if isinstance(error, ShuttingDown):
            self.is_kept = False
        self.deliver(*self.error_answer(error))

    def error_answer(self, error: GanglionError) -> tuple[int, Headers, bytes]:
        """An error as a whole answer."""
        errors = self._context.route.errors
        headers = [(b"content-type", b"application/json")]
        headers += ((name.encode(), value.encode()) for name, value in error_headers(error).items())
        return errors.status_of(error), headers, errors.encode(error, self._context.request_id)

    def open(self, attempt: NodeAttempt) -> None:
        """Only the head: what follows is not here yet."""
        self._send(self._head_of(attempt))

    def write(self, attempt: NodeAttempt, data: bytes) -> None:
        """More of a stream."""
        self.has_streamed = True
        if not self.has_begun:
            head = self._head_of(attempt)
            self._send(head if self._is_bare else head + self._framed(data))
        elif not self._is_bare:
            self._connection.write(self._framed(data))

    def close(self, attempt: NodeAttempt, data: bytes) -> None:
        """The last of a stream."""
        head = b"" if self.has_begun else self._head_of(attempt)
        if self._is_bare:
            self._send(head)
            return
        self._send(b"".join((head, self._framed(data), heads.LAST_CHUNK if self._is_chunked else b"")))

    def send_keep_alive(self) -> None:
        """Say that the stream is still to come, in a way that is no part of it."""
        sign = self._context.route.errors.keep_alive
        if self._is_bare or sign is None:
            return
        opening = b"" if self.has_begun else self._opening()
        self._send(opening + self._framed(sign))

    def _opening(self) -> bytes:
        """The head of a stream before any node has begun one."""
        self.status, self._is_events = 200, True
        return heads.response_head(200, _EVENT_STREAM, self._own(self._unsized()))

    def break_off(self, attempt: NodeAttempt | None, error: GanglionError, data: bytes = b"") -> None:
        """The last of a stream that failed, behind what of it is still whole; None where none was begun."""
        head = b"" if attempt is None or self.has_begun else self._head_of(attempt)
        if not self._is_events or self._is_bare:
            self._connection.abort()
            self.is_kept = False
            return
        event = self._context.route.errors.encode_event(error, self._context.request_id)
        last = heads.LAST_CHUNK if self._is_chunked else b""
        self._send(b"".join((head, self._framed(data + event), last)))

    def switch(self, attempt: NodeAttempt) -> None:
        """The connection is a WebSocket's from here on."""
        self.status, self.is_kept = 101, False
        self._send(heads.switching_head(attempt.headers, self._names()))

    def pass_on(self, data: bytes) -> None:
        """Bytes of a WebSocket."""
        self._connection.write(data)

    def allow(self) -> None:
        """Answer a browser's preflight: its page may ask."""
        requested = self._context.call.head.named.get(b"access-control-request-headers", b"")
        lines = (
            b"access-control-allow-methods: GET, HEAD, POST, DELETE\r\n"
            b"access-control-allow-headers: %b\r\naccess-control-max-age: 600\r\n" % requested
        )
        self.status = 204
        self._send(heads.response_head(204, (), self._own(lines)))

    @property
    def is_preflight(self) -> bool:
        """Whether it is the preflight of a page of a configured origin."""
        head = self._context.call.head
        return (
            head.method == b"OPTIONS"
            and b"access-control-request-method" in head.named
            and bool(self._cors())
        )

    def _send(self, data: bytes) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._listener.metrics.begun(self._context.route.label, perf_counter() - self.began_s)
        if data:
            self._connection.write(data)

    def _head_of(self, attempt: NodeAttempt) -> bytes:
        self.status = attempt.status
        self._is_events = attempt.stream is not None and attempt.stream.has_events
        length = heads.header_of(attempt.headers, b"content-length")
        if length is not None and attempt.stream is not None and not self._is_events:
            framing = b"content-length: %b\r\n" % length
        else:
            framing = self._unsized()
        return heads.response_head(attempt.status, attempt.headers, self._own(framing))

    def _unsized(self) -> bytes:
        """How a body is framed whose length is not known."""
        if self._context.call.head.is_old:
            self.is_kept = False
            return b""
        self._is_chunked = True
        return b"transfer-encoding: chunked\r\n"

    def _framed(self, data: bytes) -> bytes:
        return heads.chunk(data) if self._is_chunked and data else data

    def _own(self, framing: bytes) -> bytes:
        """The lines of the head that are ours."""
        if self._listener.is_draining:
            self.is_kept = False
        lines = self._names() + framing
        if not self.is_kept:
            return lines + b"connection: close\r\n"
        return lines + b"connection: keep-alive\r\n" if self._context.call.head.is_old else lines

    def _names(self) -> bytes:
        # Anthropic's SDKs look for the id under the second name.
        name = self._context.request_id.encode()
        lines = b"x-request-id: %b\r\nrequest-id: %b\r\n" % (name, name)
        return lines + self._cors() if self._listener.settings.cors_origins else lines

    def _cors(self) -> bytes:
        """What lets a configured page read the answer; empty for any other."""
        origin = self._context.call.head.named.get(b"origin")
        known = self._listener.settings.cors_origins
        if origin is None or not ("*" in known or origin.decode("latin-1").lower().rstrip("/") in known):
            return b""
        return (
            b"access-control-allow-origin: %b\r\nvary: origin\r\n"
            b"access-control-expose-headers: x-request-id, request-id, retry-after\r\n" % origin
        )
