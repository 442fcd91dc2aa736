"""One TCP connection: uvicorn's HTTP protocol with the limits that it lacks.

Law: a request's head is bounded in bytes and in time, and what is not HTTP gets an error in our envelope.
"""

import asyncio
import uuid
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import ClassVar, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from ganglion.core.errors import GanglionError, HeadersTooLarge, InvalidRequest, Overloaded
from ganglion.engines.fair_semaphore import FairPermit, FairSemaphore
from ganglion.gateway.proxy.body_budget import SMALL_BYTES, body_budget, wait_for_room
from ganglion.gateway.upstream.write_coalescer import WriteCoalescer
from ganglion.server.middleware.scope import ABORT, WRITE_NOW
from ganglion.wire import openai_errors
from ganglion.wire.error_format import error_headers
from ganglion.wire.headers import API_KEY

MAX_HEAD_BYTES = 64 * 2**10
HEAD_S = 30.0
"""A client that takes longer to send a head holds the connection on purpose."""
_STALLED_CLOSE_S = 30.0
_MAX_PIPELINED = 64
"""Requests that may wait behind the one being answered; honest clients do not pipeline at all."""


class _BoundedHttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 with bounded heads, bounded idling and a way to cut a stalled reader."""

    max_connections: ClassVar[int]
    writes: ClassVar[WriteCoalescer]
    """What is written in one round of the event loop leaves together: a step's tokens for all connections are
    made first and sent then, each with its code still in the processor's cache."""
    _head_bytes = 0
    _is_in_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _cycles: Sequence[RequestResponseCycle] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(Overloaded("The server holds as many connections as it may."))
            return
        self._head_timer = self.loop.call_later(HEAD_S, self._give_up_on_head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        # uvicorn tells only the newest of pipelined requests that its client is gone.
        for cycle in self._cycles:
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_S, self._give_up_on_head)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HeadersTooLarge(f"The request's head is larger than {MAX_HEAD_BYTES} bytes."))

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._is_in_head, self._head_bytes = False, 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse(HeadersTooLarge(f"The request's head is larger than {MAX_HEAD_BYTES} bytes."))
            return
        self.scope["extensions"] = {
            ABORT: {"abort": self.transport.abort},
            WRITE_NOW: {
                "write": partial(_write_chunk, self.writes, self.transport, self.flow),
                "flush": self.writes.flush,
            },
        }
        super().on_headers_complete()
        if self._should_upgrade():
            return  # what follows is a WebSocket's
        self._cycles = [cycle for cycle in (*self._cycles, self.cycle) if not cycle.response_complete]
        if len(self._cycles) > _MAX_PIPELINED:
            self.transport.abort()
        # uvicorn stops reading behind a pipelined request, and would not see the client leave.
        self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head = True
        if not self.transport.is_closing():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(InvalidRequest(msg))

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, and abort it if its client does not read what was sent."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(_STALLED_CLOSE_S, self.transport.abort)

    def _give_up_on_head(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: GanglionError) -> None:
        """Answer without the app, and close."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_raw_response(error))
        self.transport.close()


def _write_chunk(
    writes: WriteCoalescer, transport: asyncio.Transport, flow: FlowControl, part: bytes
) -> bool:
    """Write part of a chunked body as uvicorn's `send` would, unless that would wait; returns whether."""
    if flow.write_paused:
        return False
    if part:
        writes.send(transport, b"%x\r\n%b\r\n" % (len(part), part))
    return True


def protocol_class(max_connections: int) -> type[_BoundedHttpProtocol]:
    """The protocol of a server that holds at most so many connections."""
    fields = {"max_connections": max_connections, "writes": WriteCoalescer()}
    return type("BoundedProtocol", (_BoundedHttpProtocol,), fields)


class _AbortableWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket with a way to cut a stalled reader."""

    def handle_connect(self, event: Request) -> None:
        """Start the app, with a way to end the connection without waiting for unread bytes."""
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.scope["extensions"][ABORT] = {"abort": self.transport.abort}


def _raw_response(error: GanglionError) -> bytes:
    body = openai_errors.encode_error(error)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "x-request-id": uuid.uuid4().hex,
        **error_headers(error),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n{lines}\r\n".encode() + body


# Without this, a message that never ends is held as long as its connection, on as many as a client opens.

_TRY_AGAIN_LATER: Final = 1013


class _BoundedWebSocket(_AbortableWebSocket):
    """One connection whose large messages wait for memory, shared out by the key as it was sent."""

    turns: ClassVar[FairSemaphore]
    max_bytes: ClassVar[int]
    _coming_bytes = 0
    _turn: FairPermit | None = None
    _waiting: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        """Receive bytes, and pause reading where there is no room for a large message."""
        self._coming_bytes += len(data)
        super().data_received(data)
        is_large = self._coming_bytes > SMALL_BYTES and self.handshake_initiated
        if is_large and self._turn is None and self._waiting is None and not self.transport.is_closing():
            self._make_room()

    def send_receive_event_to_app(self) -> None:
        """Give the memory back: the message is whole."""
        super().send_receive_event_to_app()
        self._coming_bytes = 0
        self._give_back()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give everything back: nothing more comes."""
        self._give_back()
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        headers = dict(self.scope["headers"])
        key = headers.get(b"authorization") or headers.get(API_KEY)
        asker = str(self.client) if key is None else key.decode("latin-1")
        self._turn = self.turns.take(asker, self.max_bytes)
        if self._turn is None:
            self.transport.pause_reading()
            self._waiting = self.loop.create_task(self._wait(asker))

    async def _wait(self, asker: str) -> None:
        try:
            self._turn = await wait_for_room(self.turns, asker, self.max_bytes)
        except Overloaded:
            self.conn.send_close(_TRY_AGAIN_LATER)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            return
        finally:
            self._waiting = None
        if not self.read_paused:
            self.transport.resume_reading()

    def _give_back(self) -> None:
        if self._turn is not None:
            self._turn.close()
            self._turn = None


def websocket_class(max_bytes: int) -> type[_BoundedWebSocket]:
    """The class of one server's WebSockets, which share their memory."""
    return type(
        "ServersSocket", (_BoundedWebSocket,), {"turns": body_budget(max_bytes), "max_bytes": max_bytes}
    )
