"""One client's connection: requests read within bounds, and answered in the order in which they came.

Law: one exchange runs at a time. Reading goes on meanwhile, or nobody would see the client leave; what comes
early waits, up to a bound.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from ganglion.core.errors import (
    BodyTooLarge,
    GanglionError,
    HeadersTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    Overloaded,
    RequestTimeout,
    UnknownTransferCoding,
)
from ganglion.engines.fair_semaphore import FairPermit
from ganglion.gateway.proxy.body_budget import SMALL_BYTES, wait_for_room
from ganglion.gateway.proxy.client_request import (
    NOWHERE,
    ClientRequest,
    HeadCache,
    build_head,
    cache_head,
    presented_key,
)
from ganglion.gateway.proxy.exchange import ProxyExchange
from ganglion.gateway.proxy.heads import CONTINUE, head_without_upgrade
from ganglion.gateway.proxy.routes import parse_target
from ganglion.gateway.upstream.upstream_connection import Headers, UpstreamConnection

if TYPE_CHECKING:
    from ganglion.gateway.proxy.listener import ProxyListener

_MAX_HEAD_BYTES = 64 * 2**10
_MAX_PIPELINED = 64
"""Requests that may wait behind the one being answered; nobody honest sends more."""
_MAX_EARLY_BYTES = 2**20
"""Of requests that wait; beyond it the client is not read until its turn comes."""
_LARGE_BYTES = SMALL_BYTES
"""A larger body is read only from somebody whose key is good, and once there is room for it."""
_LINGER_S = 2.0
"""How long a refused client may go on sending: cut at once, it would never read why."""


class ClientConnection(asyncio.Protocol):
    """What a client and one exchange after the other say to each other."""

    def __init__(self, listener: "ProxyListener") -> None:
        self.listener = listener
        self.exchange: ProxyExchange | None = None
        self.is_full = False
        """What was written waits unsent: the client does not keep up."""
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[ClientRequest] = deque()
        self._known: HeadCache | None = None
        self._tunnel: UpstreamConnection | None = None
        self._is_advancing = False
        self._is_deaf = False
        self._is_read_paused = False
        self._closing_since_s: float | None = None
        self._since_s = listener.now_s
        """When what it is at began: being idle, sending a head, sending a body, not reading."""
        self._unsent_bytes = 0
        self._head_bytes = 0
        self._is_in_head = False
        self._is_in_body = False
        self._url = b""
        self._headers: Headers = []
        self._named: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._body_bytes = 0
        self._room: FairPermit | None = None
        self._waiting: asyncio.Task[None] | None = None
        """For room; meanwhile the client is not read."""
        self._is_kept = False
        self._owes_continue = False
        """A client waits for a word before it sends a body, and others are answered before it."""

    # The socket's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are, and do not say so
        self.listener.opened(self)
        if len(self.listener.connections) > self.listener.settings.max_connections:
            self._refuse(Overloaded("The server holds as many connections as it may."))
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.listener.closed(self)
        self._leave_room()
        self._queue.clear()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.leave()

    def pause_writing(self) -> None:
        self.is_full = True
        self._since_s = self.listener.now_s
        self._unsent_bytes = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        self.is_full = False
        self._since_s = self.listener.now_s
        if self.exchange is not None:
            self.exchange.resume()
        self._advance()

    def data_received(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel.write(data)
            return
        if self._is_deaf:
            return
        is_first = self.exchange is None and not (self._is_in_head or self._is_in_body or self._queue)
        if is_first and self._begin_again(data):
            return
        if not self._is_in_body:
            self._head_bytes += len(data)
        self._feed(data)
        if self._is_in_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse(HeadersTooLarge(f"The request's head is larger than {_MAX_HEAD_BYTES} bytes."))
        if is_first:
            call = self._queue[0] if self._queue else None
            self._known = None if call is None or len(self._queue) > 1 else cache_head(data, call.head)
        self._advance()

    def _begin_again(self, data: bytes) -> bool:
        """Begin with a request whose head was read before, if this is one."""
        known, listener = self._known, self.listener
        if known is None or listener.is_draining:
            return False
        body = known.body_in(data, min(_LARGE_BYTES, listener.settings.max_body_bytes))
        if body is None:
            return False
        self._queue.append(ClientRequest(known.head, body))
        self._advance()
        return True

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self._is_deaf:
                    return
                version = self._parser.get_http_version()
                self._parser = httptools.HttpRequestParser(self)
                if self._queue and self._queue[-1].head.is_socket:
                    self._is_deaf = bool(data)  # nothing may follow before it is accepted
                    return
                # The parser takes whatever follows for the other protocol, a body too: read it all again
                # as what it is without the wish, which nobody has to grant.
                call = self._queue.pop()
                data = head_without_upgrade(call.head, self._url, version) + data
            except httptools.HttpParserCallbackError as error:
                context = error.__context__
                if not isinstance(context, GanglionError):
                    raise
                self._refuse(context)
                return
            except httptools.HttpParserError as error:
                self._refuse(InvalidRequest(f"This is not an HTTP/1.1 request: {error}."))
                return

    # The parser calls these; one that raises ends the parsing, and the client gets what it raised.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_in_head, self._since_s = True, self.listener.now_s
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        """A piece of its URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer."""
        if self._is_in_head:  # else a trailer, which nobody judged
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Its head is whole: judge it before a body is read."""
        self._is_in_head, self._is_in_body = False, True
        head_bytes, self._head_bytes = self._head_bytes, 0
        if head_bytes > _MAX_HEAD_BYTES:
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)
            if size > _MAX_HEAD_BYTES:
                raise HeadersTooLarge(f"The request's head is larger than {_MAX_HEAD_BYTES} bytes.")
        named = self._named = dict(self._headers)
        if len(named) != len(self._headers) and sum(name == b"host" for name, _ in self._headers) > 1:
            raise InvalidRequest("The request names more than one host.")
        if b"host" not in named and self._parser.get_http_version() != "1.0":
            raise InvalidRequest("The request names no host.")
        self._is_kept = self._parser.should_keep_alive() and not self.listener.is_draining
        self._parts, self._body_bytes = [], 0
        length = named.get(b"content-length")
        if length is None and b"transfer-encoding" not in named:
            return
        if length is None:
            self._check_coding()
        self._expect_body(0 if length is None else int(length), is_chunked=length is None)

    def _check_coding(self) -> None:
        """Chunks are framing; whatever else is named is a form that nobody here undoes."""
        codings = [value for name, value in self._headers if name == b"transfer-encoding"]
        if [coding.strip().lower() for coding in codings] != [b"chunked"]:
            raise UnknownTransferCoding("The only transfer coding that is understood is 'chunked'.")

    def _expect_body(self, length: int, *, is_chunked: bool) -> None:
        listener = self.listener
        self._since_s = listener.now_s
        if length > listener.settings.max_body_bytes:
            raise BodyTooLarge(listener.settings.max_body_bytes)
        if is_chunked or length > _LARGE_BYTES:
            identity = listener.gatekeeper.identify(presented_key(self._named))
            self._ask_for_room(identity.tenant, length or listener.settings.max_body_bytes)
        self._owes_continue = self._named.get(b"expect", b"").lower() == b"100-continue"
        if self._owes_continue and self.exchange is None and not self._queue:
            self._continue()

    def _continue(self) -> None:
        """Ask a client that waits for it to send its body."""
        self._owes_continue = False
        self.write(CONTINUE)

    def _ask_for_room(self, tenant: str, size_bytes: int) -> None:
        self._room = self.listener.bodies.take(tenant, size_bytes)
        if self._room is None:
            self._waiting = asyncio.ensure_future(self._wait_for_room(tenant, size_bytes))

    async def _wait_for_room(self, tenant: str, size_bytes: int) -> None:
        try:
            self._room = await wait_for_room(self.listener.bodies, tenant, size_bytes)
        except Overloaded:
            self._waiting = None
            self._refuse(Overloaded("The gateway is reading as many large bodies as it may."))
            self._advance()
            return
        self._waiting = None
        self._bound_early()

    def _leave_room(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._room is not None:
            self._room.close()
            self._room = None

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self._parts.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self.listener.settings.max_body_bytes:
            raise BodyTooLarge(self.listener.settings.max_body_bytes)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._is_in_body = self._owes_continue = False
        self._leave_room()
        parts, self._parts = self._parts, []
        method = self._parser.get_method()
        if method == b"CONNECT":
            raise MethodNotAllowed("This is no proxy for other servers.")
        head = build_head(
            method,
            parse_target(self._url),
            self._headers,
            is_kept=self._is_kept,
            is_old=self._is_old(),
            is_socket=method == b"GET" and self._named.get(b"upgrade", b"").lower() == b"websocket",
        )
        call = ClientRequest(head, parts[0] if len(parts) == 1 else b"".join(parts))
        if len(self._queue) >= _MAX_PIPELINED + (self.exchange is None):
            raise InvalidRequest(f"More than {_MAX_PIPELINED} requests wait for the one before them.")
        self._queue.append(call)

    def _is_old(self) -> bool:
        # What is kept without a word about it can only be HTTP/1.1; asking the parser writes a string.
        if self._is_kept and b"connection" not in self._named:
            return False
        return bool(self._parser.get_http_version() == "1.0")

    def _refuse(self, error: GanglionError) -> None:
        """Answer what will never be a whole request, in its turn, and hear nothing more."""
        if self._is_deaf:
            return
        self._is_deaf = True
        self._is_in_head = self._is_in_body = False
        self._leave_room()
        try:
            target = parse_target(self._url) if self._url else NOWHERE
        except InvalidRequest:
            target = NOWHERE
        self._parts = []
        method = self._parser.get_method() if self._url else b"-"
        self._queue.append(ClientRequest(build_head(method, target, self._headers), refusal=error))

    # The exchange's side.

    def write(self, data: bytes) -> None:
        """Send to the client."""
        if self._transport is not None:
            self.listener.writes.send(self._transport, data)

    def finished(self, *, is_kept: bool) -> None:
        """The exchange is over, and all it had to say is written."""
        self.exchange = None
        self._since_s = self.listener.now_s
        if self._transport is None:
            return
        if not is_kept or self._tunnel is not None:
            self._queue.clear()
            self.close()
        elif not self._is_advancing and (self._queue or self._is_in_body or self._is_read_paused):
            self._advance()

    def tunnel(self, upstream: UpstreamConnection) -> None:
        """From now on bytes go through as they are."""
        self._tunnel = upstream
        upstream.on_full = self._hold_back

    def _hold_back(self, is_full: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        """End it once everything is sent, and the client had time to read it."""
        if self._transport is None or self._closing_since_s is not None:
            return
        self._closing_since_s = self.listener.now_s
        self.listener.writes.flush()
        if self._is_deaf and self._tunnel is None and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._is_deaf = True
            self._transport.close()

    def close_if_idle(self) -> None:
        """End it where nothing is under way."""
        if self.exchange is None and not self._queue and not self._is_in_body:
            self.close()

    def abort(self) -> None:
        """Cut it."""
        if self._transport is not None:
            self.listener.writes.flush()
            self._transport.abort()

    def _advance(self) -> None:
        """Begin what waits, as far as it may begin now."""
        self._is_advancing = True
        while self._queue and self.exchange is None and not self.is_full and self._transport is not None:
            self.exchange = exchange = ProxyExchange(self.listener, self, self._queue.popleft())
            exchange.begin()
        self._is_advancing = False
        if self._owes_continue and self.exchange is None and not self._queue:
            self._continue()  # its turn has come
        if self._queue or self._is_in_body or self._is_read_paused:
            self._bound_early()

    def _bound_early(self) -> None:
        if self._transport is None or self._transport.is_closing() or self._tunnel is not None:
            return
        early_bytes = sum(len(call.body) for call in self._queue)
        is_too_much = self._waiting is not None or (
            self.exchange is not None and early_bytes + self._early_body() > _MAX_EARLY_BYTES
        )
        if is_too_much != self._is_read_paused:
            self._is_read_paused = is_too_much
            if is_too_much:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _early_body(self) -> int:
        return self._body_bytes if self._is_in_body else 0

    # The reaper's side.

    def check(self, now_s: float) -> None:
        """Cut whatever took too long; called now and then."""
        settings = self.listener.settings
        waited_s = now_s - self._since_s
        if self._closing_since_s is not None:
            limit_s = settings.stall_s if self._buffered() else _LINGER_S
            if now_s - self._closing_since_s > limit_s:
                self.abort()
        elif self.is_full:
            self._check_reader(now_s, waited_s)
        elif self.exchange is not None:
            self.exchange.check(now_s)
        elif self._is_in_body:
            if waited_s > settings.body_s:
                self._refuse(RequestTimeout("The request's body took too long."))
                self._advance()
        elif self._is_in_head:
            if waited_s > settings.head_s:
                self.abort()
        elif waited_s > settings.keep_alive_s:
            self.close()

    def _check_reader(self, now_s: float, waited_s: float) -> None:
        unsent_bytes = self._buffered()
        if unsent_bytes < self._unsent_bytes:
            self._since_s = now_s
        elif waited_s > self.listener.settings.stall_s:
            self.abort()
        self._unsent_bytes = unsent_bytes

    def _buffered(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()
