"""The door of `POST /v1/responses`."""

import asyncio
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.errors import ContextLengthExceeded
from ganglion.core.events import Failed
from ganglion.server.answers import Answers
from ganglion.server.drain import Gate
from ganglion.server.http import read_json, send_stream, stream, while_connected
from ganglion.server.ports import Ports
from ganglion.server.responses.desk import Desk, Exchange
from ganglion.server.responses.runs import Run, Runs
from ganglion.server.responses.truncating import Truncating
from ganglion.server.scope import header, is_on, tenant
from ganglion.server.settings import ServerSettings
from ganglion.wire.frame import Comment, Frame


class ResponsesDoor:
    """Answers a call, streamed or whole, or lets it run in the background."""

    def __init__(self, ports: Ports, settings: ServerSettings, gate: Gate, desk: Desk, runs: Runs) -> None:
        self._engine = ports.engine
        self._settings = settings
        self._gate = gate
        self._desk = desk
        self._runs = runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        markers = is_on(scope, b"x-include-thinking")
        exchange = await self._desk.open(body, tenant(scope), keep_markers=markers)
        if exchange.call.is_background:
            await self._in_background(exchange, scope, receive, send)
            return
        with self._gate.admit():
            try:
                await while_connected(scope, receive, self._answer(exchange, scope, receive, send))
            finally:
                self._desk.abandon(exchange)

    async def _answer(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        engine = Truncating(self._engine) if exchange.call.may_truncate else self._engine
        async with Answers(engine, (exchange.call.request,)) as answers:
            if exchange.call.is_streamed:
                await self._stream(exchange, answers, scope, send)
                return
            whole = await _whole(exchange, answers)
        await self._desk.keep(exchange, whole)
        await _json(whole)(scope, receive, send)

    async def _stream(self, exchange: Exchange, answers: Answers, scope: Scope, send: Send) -> None:
        keeping = Keeping(self._desk, exchange)
        try:
            await stream(answers, exchange.projection, send, self._settings, keeping=keeping)
        except ContextLengthExceeded as error:
            if not is_codex(scope):
                raise
            # Codex takes a status for a fault of the network and retries; only this event makes it compact.
            frames = exchange.projection.feed(Failed(error))
            await send_stream(await keeping.ended(frames), send, self._settings)
        finally:
            await keeping.close()

    async def _in_background(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        run = await self._runs.start(exchange)
        if exchange.call.is_streamed:
            await while_connected(scope, receive, follow(run, -1, send, self._settings))
            return
        await _json(exchange.projection.snapshot())(scope, receive, send)


class Keeping:
    """Keeps a streamed response: begun beside the first step, ended before the last frame leaves."""

    def __init__(self, desk: Desk, exchange: Exchange) -> None:
        self._desk = desk
        self._exchange = exchange
        self._beginning = asyncio.create_task(desk.begin(exchange), name=f"begin {exchange.id}")

    async def begun(self) -> None:
        """Return once the response is kept as begun; raises why it cannot be."""
        await asyncio.shield(self._beginning)

    async def ended(self, frames: Sequence[Frame | Comment]) -> list[Frame | Comment]:
        """Keep the response; the frames to end with."""
        await asyncio.gather(self._beginning, return_exceptions=True)
        return await self._desk.end(self._exchange, frames)

    async def close(self) -> None:
        """Wait for the beginning, which an ending must not overtake."""
        await asyncio.gather(self._beginning, return_exceptions=True)


async def follow(run: Run, after: int, send: Send, settings: ServerSettings) -> None:
    """Stream a run's frames after a number; who leaves leaves it running."""
    await send_stream(run.follow(after), send, settings)


async def _whole(exchange: Exchange, answers: Answers) -> bytes:
    projection = exchange.projection
    while not projection.is_done:
        for _, event in await answers.take():
            if isinstance(event, Failed):
                raise event.error
            projection.feed(event)
    assert projection.final is not None
    return projection.final


def is_codex(scope: Scope) -> bool:
    """Whether the client is Codex, by what it says of itself."""
    agent = header(scope, b"user-agent") or b""
    return (header(scope, b"originator") or b"").startswith(b"codex") or agent.lower().startswith(b"codex")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
