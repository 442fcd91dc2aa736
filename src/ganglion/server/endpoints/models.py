"""The doors of models that come and go: list, load, unload.

Law: a load goes on when whoever asked for it leaves; others may wait for it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.engine import (
    Engine,
    LoadOptions,
    LoadProgress,
    ModelHolder,
    ModelState,
    TokenizerInfo,
    find_model,
)
from ganglion.core.errors import (
    EngineUnavailable,
    GanglionError,
    ModelNotFound,
    ModelNotLoaded,
    ReadoutNotFound,
)
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.endpoints.http import json_response, read_json, stream_headers, while_connected
from ganglion.server.middleware.model_lookup import loaded_model
from ganglion.server.middleware.scope import header, principal
from ganglion.server.settings import ServerSettings
from ganglion.wire import management, readout
from ganglion.wire.frame import Comment, Frame, sse
from ganglion.wire.ollama import NDJSON, ollama_models


class ReadoutEndpoint:
    """What is read out of a model, answered from memory alone: asking loads nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def manifest(self, request: Request) -> Response:
        """`GET /v1/readout/manifest`."""
        try:
            model = loaded_model(request, principal(request.scope).visible(self._engine.models()))
        except ModelNotLoaded as error:
            raise ReadoutNotFound(
                f"The model {error.model!r} has no readouts: it is not loaded.", param="model"
            ) from None
        if model.readout is None:
            raise ReadoutNotFound(
                f"The model {model.id!r} has no readouts: no concepts are loaded for it.", param="model"
            )
        return json_response(readout.manifest(model.id, model.readout))


PROGRESS_S = 0.25
"""At most so often is a download's progress told: bytes arrive faster than anybody reads."""


class ModelEndpoints:
    """What is answered from memory alone."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._scheme = settings.scheme

    async def every(self, _: Request) -> Response:
        """`GET /models`."""
        return json_response(management.every(self._engine.models()))

    async def endpoint(self, request: Request) -> Response:
        """`GET /models/{id}/endpoint`: the address under which this connection reached the node."""
        model = self._known(request.path_params["model"])
        if model.status not in ("loaded", "recovering"):
            raise ModelNotFound(model.id, hint="It is not loaded.")
        host, port = request.scope["server"]
        address = f"[{host}]" if ":" in host else host
        return json_response(management.endpoint(f"{self._scheme}://{address}:{port}/v1"))

    async def capabilities(self, request: Request) -> Response:
        """`GET /models/{id}/capabilities`; 404 means that nobody can say yet."""
        model = self._known(request.path_params["model"])
        if not model.capabilities:
            raise ModelNotFound(model.id, hint="What it can do is not known before it is loaded.")
        return json_response(management.capabilities(model))

    def _known(self, name: str) -> ModelState:
        found = find_model(self._engine.models(), name)
        if found is None:
            raise ModelNotFound(name[:200])
        return found


class LoadModelEndpoint:
    """`POST /models/load`: answers when the model is resident, or streams how it gets there."""

    def __init__(self, holder: ModelHolder | None, settings: ServerSettings) -> None:
        self._holder = holder
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        await while_connected(scope, receive, self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        name, options = management.parse_load(body)
        async with aclosing(require_holder(self._holder).load(name, options)) as steps:
            step = await anext(steps)
            if b"wait=false" in scope["query_string"].split(b"&"):
                await json_response(management.loaded(step), 202)(scope, receive, send)
            elif b"text/event-stream" in (header(scope, b"accept") or b""):
                await _stream_load(step, steps, send, self._settings.keep_alive_s)
            else:
                async for step in steps:  # noqa: B007 - the last one is the answer
                    pass
                await json_response(management.loaded(step))(scope, receive, send)


class UnloadModelEndpoint:
    """`POST /models/unload`: answers when the model is gone."""

    def __init__(self, holder: ModelHolder | None, settings: ServerSettings) -> None:
        self._holder = holder
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, is_forced = management.parse_unload(await read_json(scope, receive, self._settings))
        await require_holder(self._holder).unload(name, is_forced=is_forced)
        await json_response(management.unloaded(name))(scope, receive, send)


async def _stream_load(
    step: LoadProgress, steps: AsyncGenerator[LoadProgress, None], send: Send, keep_alive_s: float
) -> None:
    async def tell(frame: Frame | Comment, *, is_last: bool = False) -> None:
        await send({"type": "http.response.body", "body": sse(frame), "more_body": not is_last})

    await send({"type": "http.response.start", "status": 200, "headers": stream_headers()})
    await tell(management.progress_frame(step))
    try:
        async with aclosing(throttled_progress(step, steps, keep_alive_s)) as told:
            async for news in told:
                await tell(Comment() if news is None else management.progress_frame(news))
                step = news or step
        await tell(management.loaded_frame(step), is_last=True)
    except GanglionError as error:
        await tell(management.error_frame(error), is_last=True)


async def throttled_progress(
    step: LoadProgress, steps: AsyncGenerator[LoadProgress, None], keep_alive_s: float
) -> AsyncGenerator[LoadProgress | None, None]:
    """What follows a first step: each change at once, bytes now and then, None after so much silence."""
    loop = asyncio.get_running_loop()
    told, told_s = step.status, loop.time()
    coming = asyncio.ensure_future(anext(steps, None))
    try:
        while True:
            done, _ = await asyncio.wait((coming,), timeout=keep_alive_s)
            if not done:
                yield None
                continue
            following = coming.result()
            if following is None:
                return
            if following.status != told or loop.time() - told_s >= PROGRESS_S:
                yield following
                told, told_s = following.status, loop.time()
            coming = asyncio.ensure_future(anext(steps, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def require_holder(holder: ModelHolder | None) -> ModelHolder:
    """The holder, or the error that says that there is none."""
    if holder is None:
        raise EngineUnavailable("The models of this engine are fixed; none can be loaded or unloaded.")
    return holder


class OllamaModelEndpoints:
    """What is known of models, without loading any."""

    def __init__(self, capabilities: EngineCapabilities, settings: ServerSettings) -> None:
        self._engine = capabilities.engine
        self._reader = capabilities.reader
        self._settings = settings

    async def tags(self, request: Request) -> Response:
        """`GET /api/tags`."""
        return json_response(ollama_models.tags(principal(request.scope).visible(self._engine.models())))

    async def processes(self, request: Request) -> Response:
        """`GET /api/ps`."""
        return json_response(ollama_models.processes(principal(request.scope).visible(self._engine.models())))

    async def version(self, _: Request) -> Response:
        """`GET /api/version`."""
        return json_response(ollama_models.version())

    async def show(self, request: Request) -> Response:
        """`POST /api/show`."""
        body = await read_json(request.scope, request.receive, self._settings, is_any_type=True)
        model = _find_ollama_model(
            ollama_models.parse_show(body), principal(request.scope).visible(self._engine.models())
        )
        return json_response(ollama_models.shown(model, await self._tokenizer(model)))

    async def _tokenizer(self, model: ModelState) -> TokenizerInfo | None:
        # Clients ask about every model they see: asking a tokenizer would load them all, one after another.
        if model.status != "loaded":
            return None
        try:
            return await self._reader.tokenizer_info(model.id)
        except EngineUnavailable:
            return None


class OllamaPullEndpoint:
    """`POST /api/pull`: has a model fetched and loaded; it goes on when whoever asked for it leaves."""

    def __init__(self, engine: Engine, settings: ServerSettings, holder: ModelHolder | None) -> None:
        self._engine = engine
        self._settings = settings
        self._holder = holder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings, is_any_type=True)
        name, is_streamed = ollama_models.parse_pull(body)
        steps = self._steps(ollama_models.meant(name, self._engine.models()))
        await while_connected(scope, receive, self._answer(steps, scope, receive, send, is_streamed))

    def _steps(self, name: str) -> AsyncGenerator[LoadProgress, None]:
        if self._holder is None:
            return _already_loaded(_find_ollama_model(name, self._engine.models()))
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
        await json_response(ollama_models.pull_success().data)(scope, receive, send)

    async def _stream(
        self, step: LoadProgress, steps: AsyncGenerator[LoadProgress, None], send: Send
    ) -> None:
        async def tell(*frames: Frame, is_last: bool = False) -> None:
            body = b"".join(map(NDJSON.encode, frames))
            await send({"type": "http.response.body", "body": body, "more_body": not is_last})

        await send({"type": "http.response.start", "status": 200, "headers": stream_headers(NDJSON)})
        await tell(ollama_models.pull_begun(), ollama_models.pull_progress(step))
        try:
            async with aclosing(throttled_progress(step, steps, self._settings.keep_alive_s)) as told:
                async for news in told:
                    step = news or step  # silence repeats what was said last
                    await tell(ollama_models.pull_progress(step))
            await tell(ollama_models.pull_success(), is_last=True)
        except GanglionError as error:
            await tell(ollama_models.pull_failure(error), is_last=True)


async def _already_loaded(model: ModelState) -> AsyncGenerator[LoadProgress, None]:
    """The load of a model that was there all along."""
    yield LoadProgress(model.id, model.status)


def _find_ollama_model(name: str, there: tuple[ModelState, ...]) -> ModelState:
    found = ollama_models.known(name, there)
    if found is None:
        raise ModelNotFound(name[:200])
    return found
