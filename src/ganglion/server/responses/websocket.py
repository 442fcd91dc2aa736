"""The WebSocket of the Responses wire: one connection, one response after another.

The client sends `{"type": "response.create", …}` with the fields of `POST /v1/responses`; each event goes
back as one text message. What is wrong with a message is told as `{"type": "error", "status", "error"}`, and
the connection stays; only a key that is no longer valid closes it, with code 1008. The newest response can be
continued by its id even when it was not stored: the connection remembers it, and forgets it when it closes or
when a turn that continues it fails. With `generate: false` nothing is said: the client gets an id to continue
from.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import closing
from typing import Final

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from ganglion.core.errors import ContextLengthExceeded, GanglionError, InvalidApiKey, InvalidValue
from ganglion.core.events import Failed, Finished, Usage
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.deadlines import Alarm
from ganglion.server.endpoints.http import ReaderStalled, abort_connection, write_answers
from ganglion.server.gate import Gate
from ganglion.server.middleware.model_lookup import only_model
from ganglion.server.middleware.scope import current_principal
from ganglion.server.quota import QuotaMeter, QuotaSettlement
from ganglion.server.responses.endpoint import is_codex
from ganglion.server.responses.history import Recent
from ganglion.server.responses.recorder import ResponseRecorder
from ganglion.server.responses.responses_service import (
    NO_RECENT,
    ResponsesExchange,
    ResponsesService,
    answers_to,
    full_history,
    within_quota,
)
from ganglion.server.settings import ServerSettings
from ganglion.wire.decode import ModelOmitted, with_model
from ganglion.wire.frame import Comment, Frame
from ganglion.wire.responses.errors import encode_socket_error
from ganglion.wire.responses.socket_messages import SocketCreate, parse_message, previous_response_id_of

POLICY_VIOLATION: Final = 1008
_EMPTY_FINISH = Finished("stop", Usage(0, 0))


class ResponsesWebSocket:
    """Answers the messages of one connection in turn."""

    def __init__(
        self,
        ports: EngineCapabilities,
        settings: ServerSettings,
        gate: Gate,
        desk: ResponsesService,
        meter: QuotaMeter,
    ) -> None:
        self._engine = ports.engine
        self._settings = settings
        self._gate = gate
        self._desk = desk
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        try:
            await socket.accept()
            line = WebSocketChannel(socket, self._settings.stalled_reader_s)
            try:
                await self._converse(line)
            finally:
                await line.close()
        except WebSocketDisconnect:
            return
        except ReaderStalled:
            abort_connection(scope)

    async def _converse(self, line: "WebSocketChannel") -> None:
        recent: Recent = NO_RECENT
        while True:
            message = await line.hear()
            try:
                recent = await self._answer(message, line, recent)
            except InvalidApiKey as error:
                await line.say(encode_socket_error(error))
                await line.refuse(error.message)
                return
            except GanglionError as error:
                # What a turn was to continue goes when it fails: nobody continues from there by mistake.
                recent = {
                    name: items for name, items in recent.items() if name != previous_response_id_of(message)
                }
                await line.say(encode_socket_error(error))

    async def _answer(self, message: bytes, line: "WebSocketChannel", recent: Recent) -> Recent:
        asker = current_principal(line.scope)
        with self._gate.admit():
            create = parse_message(message)
            try:
                exchange = await self._desk.open(create.body, asker, recent=recent, transport="socket")
            except ModelOmitted as missing:
                named = with_model(missing.body, only_model(asker.visible(self._engine.models())))
                exchange = await self._desk.open(named, asker, recent=recent, transport="socket")
            with QuotaSettlement(await self._meter.admit(asker, exchange.call.request)) as tab:
                exchange = within_quota(exchange, tab)
                async with ResponseRecorder(self._desk, exchange) as keeping:
                    await line.while_heard(self._stream(create, exchange, keeping, line, tab))
        return {exchange.id: full_history(exchange)}

    async def _stream(
        self,
        create: SocketCreate,
        exchange: ResponsesExchange,
        keeping: ResponseRecorder,
        line: "WebSocketChannel",
        tab: QuotaSettlement,
    ) -> None:
        projection = exchange.projection
        if not create.is_generated:
            await keeping.begun()
            await line.write(await keeping.ended(projection.feed(_EMPTY_FINISH)))
            return
        try:
            with closing(Alarm()) as alarm:
                async with answers_to(exchange, self._engine) as answers:
                    tab.answers = answers
                    await write_answers(
                        answers, projection, line, self._settings, alarm=alarm, keeping=keeping
                    )
        except ContextLengthExceeded as error:
            if not is_codex(line.scope):
                raise
            await line.write(await keeping.ended(projection.feed(Failed(error))))


class WebSocketChannel:
    """A socket as it is spoken into and heard, one message ahead: so that a client that leaves is noticed."""

    def __init__(self, socket: WebSocket, stalled_s: float) -> None:
        self.scope = socket.scope
        self._socket = socket
        self._stalled_s = stalled_s
        self._hearing = asyncio.create_task(self._next())

    async def hear(self) -> bytes:
        """The next message; raises WebSocketDisconnect."""
        message = await self._hearing
        self._hearing = asyncio.create_task(self._next())
        return message

    async def while_heard(self, work: Coroutine[None, None, None]) -> None:
        """Do the work unless the client leaves first; a message that comes meanwhile is too early."""
        working = asyncio.create_task(work)
        try:
            while not working.done():
                await asyncio.wait((working, self._hearing), return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    await self.hear()
                    early = InvalidValue("A response is still running on this connection.", param="type")
                    await self.say(encode_socket_error(early))
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        working.result()

    async def start(self) -> None:
        """A socket has no first byte of its own."""

    async def write(self, frames: Sequence[Frame | Comment], *, is_last: bool = False) -> None:
        """Say frames, each in a message."""
        for frame in frames:
            if isinstance(frame, Frame):
                await self.say(frame.data)

    async def say(self, data: bytes) -> None:
        """Say one message; raises ReaderStalled or WebSocketDisconnect."""
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._socket.send_text(data.decode())
        except TimeoutError:
            raise ReaderStalled from None

    async def refuse(self, reason: str) -> None:
        """Close the connection: whoever holds it may not come in any more."""
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._socket.close(POLICY_VIOLATION, reason)
        except TimeoutError:
            raise ReaderStalled from None

    async def close(self) -> None:
        """Hear nothing more."""
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)

    async def _next(self) -> bytes:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        text: str | None = message.get("text")
        sent: bytes = (message.get("bytes") or b"") if text is None else text.encode()
        return sent
