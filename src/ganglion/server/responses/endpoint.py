"""The endpoint of `POST /v1/responses`, and those that count and compact what a call would send."""

import time
from contextlib import ExitStack
from typing import Final

from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Engine
from ganglion.core.errors import ContextLengthExceeded
from ganglion.core.events import Failed
from ganglion.core.fold import Answer
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.endpoints.http import (
    JsonEndpoint,
    json_response,
    read_json,
    send_frames,
    stream_answers,
    while_connected,
)
from ganglion.server.gate import Gate
from ganglion.server.middleware.model_lookup import context_length_of
from ganglion.server.middleware.principal import Principal
from ganglion.server.middleware.scope import header, principal
from ganglion.server.responses.background import BackgroundRun, BackgroundRuns
from ganglion.server.responses.ids import new_id
from ganglion.server.responses.recorder import ResponseRecorder
from ganglion.server.responses.responses_service import (
    ResponsesExchange,
    ResponsesService,
    answers_to,
    read_prompt,
)
from ganglion.server.settings import ServerSettings
from ganglion.server.state import AppState
from ganglion.server.truncation import TruncatingEngine
from ganglion.wire.headers import INCLUDE_THINKING
from ganglion.wire.responses import ENDING, Item, compact_body, compacted, flat
from ganglion.wire.responses.compaction import SUMMARY_TOKENS
from ganglion.wire.responses.items import InputText, MessageItem
from ganglion.wire.responses.stored import compaction, input_tokens

# Compaction keeps what the user said as it was. All the rest becomes the model's own summary, in one sealed
# item that only this server opens again.

_SUMMARY_PROMPT: Final = (
    "Summarize everything above for yourself, so that you can go on with the task from your summary alone: "
    "what was asked for, what was decided, what was done and found out, names and values that matter, and "
    "what is left to do. Write only the summary."
)
_SUMMARY_HEADING: Final = "Summary of the conversation so far:\n"


class CompactionEndpoints:
    """`POST /v1/responses/compact` and `/input_tokens`: what a call would send, summarized or counted."""

    def __init__(
        self,
        capabilities: EngineCapabilities,
        settings: ServerSettings,
        gate: Gate,
        service: ResponsesService,
        state: AppState,
    ) -> None:
        self._engine = capabilities.engine
        self._reader = capabilities.reader
        self._service = service
        self._seal = state.seal
        self.compact = JsonEndpoint(self._compact, settings, gate)
        self.input_tokens = JsonEndpoint(self._count, settings, gate)

    async def _compact(self, body: bytes, principal: Principal) -> bytes:
        """Have the model summarize what it is sent, and seal the summary."""
        body = compact_body(body, _SUMMARY_PROMPT, SUMMARY_TOKENS)
        exchange = await self._service.reserve(await self._service.open(body, principal))
        with exchange.settlement:
            async with answers_to(exchange, TruncatingEngine(self._engine), is_folded=True) as answers:
                (answer,) = await answers.whole()
        output = self._output(exchange, answer)
        return compaction(new_id("resp"), int(time.time()), output, answer.finished.usage)

    def _output(self, exchange: ResponsesExchange, answer: Answer) -> list[Item]:
        seal = self._seal.of(exchange.tenant)
        everything = flat((*exchange.history, *exchange.call.input_items[:-1]), seal)
        said = [item for item in everything if isinstance(item, MessageItem) and item.role == "user"]
        summary = MessageItem(
            id=new_id("msg"), role="developer", content=[InputText(_SUMMARY_HEADING + answer.text("text"))]
        )
        return [*said, compacted([summary], seal, new_id("cmp"))]

    async def _count(self, body: bytes, principal: Principal) -> bytes:
        """Count what a call would send to the model, its history included."""
        exchange = await self._service.open(body, principal)
        context_length = context_length_of(self._engine.models(), exchange.call.request.model)
        return input_tokens(len((await read_prompt(exchange, self._reader, context_length)).tokens))


class ResponsesEndpoint:
    """Answers a call, streamed or whole, or lets it run in the background."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        gate: Gate,
        service: ResponsesService,
        runs: BackgroundRuns,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._gate = gate
        self._service = service
        self._runs = runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        markers = header(scope, INCLUDE_THINKING) == b"1"
        with ExitStack() as admission:
            admission.enter_context(self._gate.admit())
            exchange = await self._service.open(body, principal(scope), keep_markers=markers)
            if not exchange.call.is_background:
                exchange = await self._service.reserve(exchange)
                with exchange.settlement:
                    await self._answer(exchange, scope, receive, send)
                return
            run = await self._runs.start(exchange, admission)
        await self._follow(run, scope, receive, send)

    async def _answer(self, exchange: ResponsesExchange, scope: Scope, receive: Receive, send: Send) -> None:
        if not exchange.call.is_streamed:
            await while_connected(scope, receive, self._whole(exchange, scope, receive, send))
            return
        async with ResponseRecorder(self._service, exchange) as recorder:
            await while_connected(scope, receive, self._stream(exchange, recorder, scope, send))

    async def _whole(self, exchange: ResponsesExchange, scope: Scope, receive: Receive, send: Send) -> None:
        projection = exchange.projection
        async with answers_to(exchange, self._engine, is_folded=True) as answers:
            while not projection.is_done:
                for _, event in await answers.take():
                    if isinstance(event, Failed):
                        raise event.error
                    projection.feed(event)
        await self._service.save(exchange)
        assert projection.final is not None
        await json_response(projection.final)(scope, receive, send)

    async def _stream(
        self, exchange: ResponsesExchange, recorder: ResponseRecorder, scope: Scope, send: Send
    ) -> None:
        projection = exchange.projection
        try:
            async with answers_to(exchange, self._engine) as answers:
                await stream_answers(
                    answers, projection, scope, send, self._settings, recorder=recorder, ending=ENDING
                )
        except ContextLengthExceeded as error:
            if not is_codex(scope):
                raise
            frames = projection.feed(Failed(error))
            await send_frames(await recorder.record_end(frames), scope, send, self._settings, ending=ENDING)

    async def _follow(self, run: BackgroundRun, scope: Scope, receive: Receive, send: Send) -> None:
        if run.exchange.call.is_streamed:
            following = send_frames(run.follow(), scope, send, self._settings, ending=ENDING)
            await while_connected(scope, receive, following)
        else:
            await json_response(await run.snapshot())(scope, receive, send)


def is_codex(scope: Scope) -> bool:
    """Whether the client is Codex, which takes an error status for a network fault, not `response.failed`."""
    agent = header(scope, b"user-agent") or b""
    return (header(scope, b"originator") or b"").startswith(b"codex") or agent.lower().startswith(b"codex")
