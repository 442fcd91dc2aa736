"""The door of `POST /v1/responses`."""

from contextlib import ExitStack

from starlette.types import Receive, Scope, Send

from ganglion.core.errors import ContextLengthExceeded
from ganglion.core.events import Failed
from ganglion.server.drain import Gate
from ganglion.server.http import json_response, read_json, send_frames, stream, while_connected
from ganglion.server.metering import Tab
from ganglion.server.ports import Ports
from ganglion.server.responses.desk import Desk, Exchange, bounded
from ganglion.server.responses.keeping import Keeping
from ganglion.server.responses.runs import Run, Runs
from ganglion.server.responses.truncating import answers_to
from ganglion.server.scope import header, is_on, visit
from ganglion.server.settings import ServerSettings
from ganglion.wire.responses import ENDING


class ResponsesDoor:
    """Answers a call, streamed or whole, or lets it run in the background."""

    def __init__(self, ports: Ports, settings: ServerSettings, gate: Gate, desk: Desk, runs: Runs) -> None:
        self._engine = ports.engine
        self._settings = settings
        self._gate = gate
        self._desk = desk
        self._runs = runs
        self._meter = runs.meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        markers = is_on(scope, b"x-include-thinking")
        with ExitStack() as place:
            place.enter_context(self._gate.admit())
            exchange = await self._desk.open(body, visit(scope), keep_markers=markers)
            if not exchange.call.is_background:
                with Tab(await self._meter.admit(exchange.visit, exchange.call.request)) as tab:
                    await self._answer(bounded(exchange, tab), tab, scope, receive, send)
                return
            run = await self._runs.start(exchange, place)
        await self._follow(run, scope, receive, send)

    async def _answer(self, exchange: Exchange, tab: Tab, scope: Scope, receive: Receive, send: Send) -> None:
        if not exchange.call.is_streamed:
            await while_connected(scope, receive, self._whole(exchange, tab, scope, receive, send))
            return
        async with Keeping(self._desk, exchange) as keeping:
            await while_connected(scope, receive, self._stream(exchange, tab, keeping, scope, send))

    async def _whole(self, exchange: Exchange, tab: Tab, scope: Scope, receive: Receive, send: Send) -> None:
        projection = exchange.projection
        async with answers_to(exchange, self._engine, is_folded=True) as answers:
            tab.answers = answers
            while not projection.is_done:
                for _, event in await answers.take():
                    if isinstance(event, Failed):
                        raise event.error
                    projection.feed(event)
        await self._desk.keep(exchange)
        assert projection.final is not None
        await json_response(projection.final)(scope, receive, send)

    async def _stream(self, exchange: Exchange, tab: Tab, keeping: Keeping, scope: Scope, send: Send) -> None:
        try:
            async with answers_to(exchange, self._engine) as answers:
                tab.answers = answers
                projection = exchange.projection
                await stream(answers, projection, send, self._settings, keeping=keeping, ending=ENDING)
        except ContextLengthExceeded as error:
            if not is_codex(scope):
                raise
            frames = exchange.projection.feed(Failed(error))
            await send_frames(await keeping.ended(frames), send, self._settings, ending=ENDING)

    async def _follow(self, run: Run, scope: Scope, receive: Receive, send: Send) -> None:
        if run.exchange.call.is_streamed:
            following = send_frames(run.follow(), send, self._settings, ending=ENDING)
            await while_connected(scope, receive, following)
        else:
            await json_response(await run.snapshot())(scope, receive, send)


def is_codex(scope: Scope) -> bool:
    """Whether a client takes a status for a fault of the network, and only `response.failed` for too long."""
    agent = header(scope, b"user-agent") or b""
    return (header(scope, b"originator") or b"").startswith(b"codex") or agent.lower().startswith(b"codex")
