"""The WebSocket of the Responses wire: one connection, one response after another.

The client sends `{"type": "response.create", …}` with the fields of `POST /v1/responses`; each event goes
back as one text message. What is wrong with a message is told as `{"type": "error", "status", "error"}`, and
the connection stays. The newest response can be continued by its id even when it was not stored: the
connection remembers it, and forgets it when it closes.
"""

import asyncio
from collections.abc import Sequence

import msgspec
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from ganglion.core.errors import ContextLengthExceeded, DeadlineExceeded, GanglionError, InvalidValue
from ganglion.core.events import Failed
from ganglion.server.answers import Answers
from ganglion.server.drain import Gate
from ganglion.server.ports import Ports
from ganglion.server.responses.desk import NOTHING_RECENT, Desk, Exchange, remembered
from ganglion.server.responses.door import Keeping, is_codex
from ganglion.server.responses.history import Recent
from ganglion.server.responses.truncating import Truncating
from ganglion.server.scope import tenant
from ganglion.server.settings import ServerSettings
from ganglion.wire.decode import decode
from ganglion.wire.frame import Comment, Frame
from ganglion.wire.responses.stored import socket_error

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CREATE = b'"response.create"'


class SocketDoor:
    """Answers the messages of one connection in turn."""

    def __init__(self, ports: Ports, settings: ServerSettings, gate: Gate, desk: Desk) -> None:
        self._engine = ports.engine
        self._settings = settings
        self._gate = gate
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        recent: Recent = NOTHING_RECENT
        hearing = Hearing(socket)
        try:
            while True:
                message = await hearing.next()
                try:
                    recent = await self._answer(message, socket, hearing, recent)
                except GanglionError as error:
                    await self._send(socket, socket_error(error))
        except WebSocketDisconnect:
            return
        finally:
            await hearing.close()

    async def _answer(self, message: bytes, socket: WebSocket, hearing: "Hearing", recent: Recent) -> Recent:
        body = _create(message)
        exchange = await self._desk.open(body, tenant(socket.scope), recent=recent, transport="socket")
        with self._gate.admit():
            try:
                await self._while_connected(socket, hearing, exchange)
            finally:
                self._desk.abandon(exchange)
        return {exchange.id: remembered(exchange)}

    async def _while_connected(self, socket: WebSocket, hearing: "Hearing", exchange: Exchange) -> None:
        """Stream the answer unless the client leaves; a message that comes meanwhile is too early."""
        streaming = asyncio.create_task(self._stream(socket, exchange))
        try:
            while not streaming.done():
                await asyncio.wait((streaming, hearing.pending), return_when=asyncio.FIRST_COMPLETED)
                if not streaming.done():
                    await hearing.next()
                    early = InvalidValue("A response is still running on this connection.", param="type")
                    await self._send(socket, socket_error(early))
            streaming.result()
        finally:
            streaming.cancel()
            await asyncio.gather(streaming, return_exceptions=True)

    async def _stream(self, socket: WebSocket, exchange: Exchange) -> None:
        projection = exchange.projection
        engine = Truncating(self._engine) if exchange.call.may_truncate else self._engine
        keeping = Keeping(self._desk, exchange)
        try:
            async with Answers(engine, (exchange.call.request,)) as answers:
                frames = await self._first_frames(answers, exchange, socket.scope)
                await keeping.begun()
                while not projection.is_done:
                    await self._tell(socket, frames)
                    frames = await self._frames(answers, exchange, has_begun=True)
                await self._tell(socket, await keeping.ended(frames))
        finally:
            await keeping.close()

    async def _first_frames(
        self, answers: Answers, exchange: Exchange, scope: Scope
    ) -> list[Frame | Comment]:
        try:
            return await self._frames(answers, exchange, has_begun=False)
        except ContextLengthExceeded as error:
            if not is_codex(scope):
                raise
            # Codex shows an error message to the person as it is; only this event makes it compact.
            return [*exchange.projection.feed(Failed(error))]

    async def _frames(
        self, answers: Answers, exchange: Exchange, *, has_begun: bool
    ) -> list[Frame | Comment]:
        projection = exchange.projection
        frames: list[Frame | Comment] = []
        try:
            async with asyncio.timeout(self._settings.keep_alive_s):
                while not frames:
                    for _, event in await answers.take():
                        if isinstance(event, Failed) and not has_begun:
                            raise event.error
                        frames += projection.feed(event)
                        if projection.is_done:
                            return frames
        except TimeoutError:
            frames += projection.tick()
        return frames

    async def _tell(self, socket: WebSocket, frames: Sequence[Frame | Comment]) -> None:
        for frame in frames:
            if isinstance(frame, Frame):
                await self._send(socket, frame.data)

    async def _send(self, socket: WebSocket, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._settings.stalled_reader_s):
                await socket.send_text(data.decode())
        except TimeoutError:
            raise DeadlineExceeded("reader", self._settings.stalled_reader_s) from None


class Hearing:
    """The messages of a socket, one ahead: so that a client that leaves is noticed while it is answered."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self.pending = asyncio.create_task(self._hear())

    async def next(self) -> bytes:
        """The next message; raises WebSocketDisconnect."""
        message = await self.pending
        self.pending = asyncio.create_task(self._hear())
        return message

    async def close(self) -> None:
        """Hear nothing more."""
        self.pending.cancel()
        await asyncio.gather(self.pending, return_exceptions=True)

    async def _hear(self) -> bytes:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        text: str | None = message.get("text")
        sent: bytes = (message.get("bytes") or b"") if text is None else text.encode()
        return sent


def _create(message: bytes) -> bytes:
    """The body that a message holds."""
    fields = decode(_fields, message)
    kind = bytes(fields.pop("type", msgspec.Raw(b"null")))
    if kind != _CREATE:
        raise InvalidValue(
            f"'type' is {kind[:64].decode(errors='replace')}; expected {_CREATE.decode()}.", param="type"
        )
    for name in ("stream", "background", "stream_options"):  # of HTTP: a socket always streams
        if bytes(fields.get(name, msgspec.Raw(b"null"))) in (b"null", b"true", b"false"):
            fields.pop(name, None)
    return msgspec.json.encode(fields)
