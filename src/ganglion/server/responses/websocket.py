"""The WebSocket of the Responses wire: one connection, one response after another.

The client sends `{"type": "response.create", …}` with the fields of `POST /v1/responses`; each event goes
back as one text message. What is wrong with a message comes back as `{"type": "error", "status", "error"}`,
and the connection stays; only a key that is no longer valid closes it, with code 1008. The newest response
can be continued by its id even when it was not stored: the connection remembers it, and forgets it when it
closes or when a turn that continues it fails. With `generate: false` nothing is generated: the client gets
an id to continue from.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import closing
from typing import Final

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from ganglion.core.engine import Engine
from ganglion.core.errors import ContextLengthExceeded, GanglionError, InvalidApiKey, InvalidValue
from ganglion.core.events import Failed, Finished, Usage
from ganglion.server.deadlines import Alarm
from ganglion.server.endpoints.http import ReaderStalled, abort_connection, write_answers
from ganglion.server.gate import Gate
from ganglion.server.middleware.model_lookup import only_model
from ganglion.server.middleware.scope import current_principal
from ganglion.server.responses.endpoint import is_codex
from ganglion.server.responses.history import Recent
from ganglion.server.responses.recorder import ResponseRecorder
from ganglion.server.responses.responses_service import (
    NO_RECENT,
    ResponsesExchange,
    ResponsesService,
    answers_to,
    full_history,
)
from ganglion.server.settings import ServerSettings
from ganglion.wire.decode import ModelOmitted, with_model
from ganglion.wire.frame import Comment, Frame
from ganglion.wire.responses.errors import encode_socket_error
from ganglion.wire.responses.socket_messages import SocketCreate, parse_message, previous_response_id_of

_POLICY_VIOLATION: Final = 1008
_EMPTY_FINISH = Finished("stop", Usage(0, 0))


class ResponsesWebSocket:
    """Answers the messages of one connection in turn."""

    def __init__(
        self, engine: Engine, settings: ServerSettings, gate: Gate, service: ResponsesService
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._gate = gate
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        try:
            await socket.accept()
            channel = _WebSocketChannel(socket, self._settings.stalled_reader_s)
            try:
                await self._converse(channel)
            finally:
                await channel.close()
        except WebSocketDisconnect:
            return
        except ReaderStalled:
            abort_connection(scope)

    async def _converse(self, channel: "_WebSocketChannel") -> None:
        recent: Recent = NO_RECENT
        while True:
            message = await channel.receive()
            try:
                recent = await self._answer(message, channel, recent)
            except InvalidApiKey as error:
                await channel.send(encode_socket_error(error))
                await channel.close_refused(error.message)
                return
            except GanglionError as error:
                # What a turn continued is forgotten when it fails: nobody continues from there by mistake.
                recent = {
                    name: items for name, items in recent.items() if name != previous_response_id_of(message)
                }
                await channel.send(encode_socket_error(error))

    async def _answer(self, message: bytes, channel: "_WebSocketChannel", recent: Recent) -> Recent:
        principal = current_principal(channel.scope)
        with self._gate.admit():
            create = parse_message(message)
            try:
                exchange = await self._service.open(create.body, principal, recent=recent, transport="socket")
            except ModelOmitted as missing:
                named = with_model(missing.body, only_model(principal.visible(self._engine.models())))
                exchange = await self._service.open(named, principal, recent=recent, transport="socket")
            exchange = await self._service.reserve(exchange)
            with exchange.settlement:
                async with ResponseRecorder(self._service, exchange) as recorder:
                    await channel.while_connected(self._stream(create, exchange, recorder, channel))
        return {exchange.id: full_history(exchange)}

    async def _stream(
        self,
        create: SocketCreate,
        exchange: ResponsesExchange,
        recorder: ResponseRecorder,
        channel: "_WebSocketChannel",
    ) -> None:
        projection = exchange.projection
        if not create.is_generated:
            await recorder.wait_begun()
            await channel.write(await recorder.record_end(projection.feed(_EMPTY_FINISH)))
            return
        try:
            with closing(Alarm()) as alarm:
                async with answers_to(exchange, self._engine) as answers:
                    await write_answers(
                        answers, projection, channel, self._settings, alarm=alarm, recorder=recorder
                    )
        except ContextLengthExceeded as error:
            if not is_codex(channel.scope):
                raise
            await channel.write(await recorder.record_end(projection.feed(Failed(error))))


class _WebSocketChannel:
    """A WebSocket that is read one message ahead, so that a client that leaves is noticed."""

    def __init__(self, socket: WebSocket, stalled_s: float) -> None:
        self.scope = socket.scope
        self._socket = socket
        self._stalled_s = stalled_s
        self._receiving = asyncio.create_task(self._next_message())

    async def receive(self) -> bytes:
        """The next message; raises WebSocketDisconnect."""
        message = await self._receiving
        self._receiving = asyncio.create_task(self._next_message())
        return message

    async def while_connected(self, work: Coroutine[None, None, None]) -> None:
        """Do the work unless the client leaves first; a message that comes meanwhile is refused."""
        working = asyncio.create_task(work)
        try:
            while not working.done():
                await asyncio.wait((working, self._receiving), return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    await self.receive()
                    early = InvalidValue("A response is still running on this connection.", param="type")
                    await self.send(encode_socket_error(early))
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        working.result()

    async def start(self) -> None:
        """Do nothing: a socket has no headers to send."""

    def write_now(self, frames: Sequence[Frame | Comment]) -> bool:
        """Write nothing: a socket's messages are sent one by one."""
        return False

    async def write(self, frames: Sequence[Frame | Comment], *, is_last: bool = False) -> None:
        """Send frames, each in a message."""
        for frame in frames:
            if isinstance(frame, Frame):
                await self.send(frame.data)

    async def send(self, data: bytes) -> None:
        """Send one message; raises ReaderStalled or WebSocketDisconnect."""
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._socket.send_text(data.decode())
        except TimeoutError:
            raise ReaderStalled from None

    async def close_refused(self, reason: str) -> None:
        """Close the connection because its key is no longer valid."""
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._socket.close(_POLICY_VIOLATION, reason)
        except TimeoutError:
            raise ReaderStalled from None

    async def close(self) -> None:
        """Stop reading."""
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)

    async def _next_message(self) -> bytes:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        text: str | None = message.get("text")
        sent: bytes = (message.get("bytes") or b"") if text is None else text.encode()
        return sent
