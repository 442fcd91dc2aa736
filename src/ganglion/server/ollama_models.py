"""The doors of Ollama's wire that speak of models: tags, ps, show, pull, version."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Engine, LoadOptions, LoadProgress, ModelHolder, ModelState, TokenizerInfo
from ganglion.core.errors import EngineUnavailable, GanglionError, ModelNotFound
from ganglion.server.http import Framing, json_response, read_json, stream_headers, while_connected
from ganglion.server.management import worth_telling
from ganglion.server.ports import Ports
from ganglion.server.scope import visible
from ganglion.server.settings import ServerSettings
from ganglion.wire.frame import Frame
from ganglion.wire.ollama import models, ndjson, pull

NDJSON = Framing(b"application/x-ndjson", ndjson)


class ModelsDoor:
    """What is known of models, without loading any."""

    def __init__(self, ports: Ports, settings: ServerSettings) -> None:
        self._engine = ports.engine
        self._reader = ports.reader
        self._settings = settings

    async def tags(self, request: Request) -> Response:
        """`GET /api/tags`."""
        return json_response(models.tags(visible(request.scope, self._engine.models())))

    async def processes(self, request: Request) -> Response:
        """`GET /api/ps`."""
        return json_response(models.processes(visible(request.scope, self._engine.models())))

    async def version(self, _: Request) -> Response:
        """`GET /api/version`."""
        return json_response(models.version())

    async def show(self, request: Request) -> Response:
        """`POST /api/show`."""
        body = await read_json(request.scope, request.receive, self._settings, is_any_type=True)
        model = _known(models.parse_show(body), visible(request.scope, self._engine.models()))
        return json_response(models.shown(model, await self._tokenizer(model)))

    async def _tokenizer(self, model: ModelState) -> TokenizerInfo | None:
        # Clients ask about every model they see: asking a tokenizer would load them all, one after another.
        if model.status != "loaded":
            return None
        try:
            return await self._reader.tokenizer_info(model.id)
        except EngineUnavailable:
            return None


class PullDoor:
    """`POST /api/pull`: has a model fetched and loaded; it goes on when whoever asked for it leaves."""

    def __init__(self, engine: Engine, settings: ServerSettings, holder: ModelHolder | None) -> None:
        self._engine = engine
        self._settings = settings
        self._holder = holder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings, is_any_type=True)
        name, is_streamed = pull.parse_pull(body)
        steps = self._steps(models.meant(name, self._engine.models()))
        await while_connected(scope, receive, self._answer(steps, scope, receive, send, is_streamed))

    def _steps(self, name: str) -> AsyncGenerator[LoadProgress, None]:
        if self._holder is None:
            return _here(_known(name, self._engine.models()))
        return self._holder.load(name, LoadOptions())

    async def _answer(
        self,
        steps: AsyncGenerator[LoadProgress, None],
        scope: Scope,
        receive: Receive,
        send: Send,
        is_streamed: bool,
    ) -> None:
        async with aclosing(steps):
            step = await anext(steps)
            if is_streamed:
                await self._stream(step, steps, send)
                return
            async for _ in steps:
                pass
        await json_response(pull.success().data)(scope, receive, send)

    async def _stream(
        self, step: LoadProgress, steps: AsyncGenerator[LoadProgress, None], send: Send
    ) -> None:
        async def tell(*frames: Frame, is_last: bool = False) -> None:
            body = b"".join(map(ndjson, frames))
            await send({"type": "http.response.body", "body": body, "more_body": not is_last})

        await send({"type": "http.response.start", "status": 200, "headers": stream_headers(NDJSON)})
        await tell(pull.begun(), pull.progress(step))
        try:
            async with aclosing(worth_telling(step, steps, self._settings.keep_alive_s)) as told:
                async for news in told:
                    step = news or step  # silence repeats what was said last
                    await tell(pull.progress(step))
            await tell(pull.success(), is_last=True)
        except GanglionError as error:
            await tell(pull.failure(error), is_last=True)


async def _here(model: ModelState) -> AsyncGenerator[LoadProgress, None]:
    """The load of a model that was there all along."""
    yield LoadProgress(model.id, model.status)


def _known(name: str, there: tuple[ModelState, ...]) -> ModelState:
    found = models.known(name, there)
    if found is None:
        raise ModelNotFound(name[:200])
    return found
