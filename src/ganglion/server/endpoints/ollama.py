"""The endpoints of Ollama's wire beside those that answer: vectors, and the list and fetching of models."""

import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ganglion.core.engine import (
    Embedded,
    EmbedRequest,
    Engine,
    LoadOptions,
    LoadProgress,
    ModelHolder,
    ModelState,
    TokenizerInfo,
)
from ganglion.core.errors import ContextLengthExceeded, EngineUnavailable, ModelNotFound
from ganglion.core.request import Request, TextPrompt, TokenPrompt
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.endpoints.http import JsonEndpoint, json_response, read_json, while_connected
from ganglion.server.endpoints.models import ProgressFormat, stream_progress
from ganglion.server.gate import Gate
from ganglion.server.middleware.auth import AdminOnly
from ganglion.server.middleware.principal import Principal
from ganglion.server.middleware.scope import principal
from ganglion.server.settings import ServerSettings
from ganglion.wire import ollama
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.ollama import NDJSON, ollama_models


def ollama_routes(
    capabilities: EngineCapabilities, settings: ServerSettings, gate: Gate, holder: ModelHolder | None
) -> list[Route]:
    """Everything under `/api/` but the routes that answer."""
    views = _OllamaModelEndpoints(capabilities, settings)
    embed = _OllamaEmbedder(ollama.parse_embed, ollama.embed_body, capabilities, is_strict=settings.is_strict)
    embeddings = _OllamaEmbedder(
        ollama.parse_embeddings, ollama.embeddings_body, capabilities, is_strict=settings.is_strict
    )
    return [
        Route("/api/embed", JsonEndpoint(embed.answer, settings, gate, is_any_type=True), methods=["POST"]),
        Route(
            "/api/embeddings",
            JsonEndpoint(embeddings.answer, settings, gate, is_any_type=True),
            methods=["POST"],
        ),
        Route("/api/show", views.show, methods=["POST"]),
        Route(
            "/api/pull",
            AdminOnly(_OllamaPullEndpoint(capabilities.engine, settings, holder), "pull models"),
            methods=["POST"],
        ),
        Route("/api/tags", views.tags),
        Route("/api/ps", views.processes),
        Route("/api/version", views.version),
    ]


class _OllamaEmbedder:
    """Turns texts into vectors; `answer` is the body of `JsonEndpoint`."""

    def __init__(
        self,
        parse: Callable[[bytes, ParseContext], ollama.OllamaEmbedCall],
        body: Callable[[ollama.OllamaEmbedCall, Embedded, float], bytes],
        capabilities: EngineCapabilities,
        *,
        is_strict: bool,
    ) -> None:
        self._parse = parse
        self._body = body
        self._capabilities = capabilities
        self._is_strict = is_strict

    async def answer(self, body: bytes, principal: Principal) -> bytes:
        """The vectors of the texts in a body."""
        request_id = f"ollama-{uuid.uuid4().hex}"
        context = ParseContext(request_id, tenant=principal.tenant, is_strict=self._is_strict)
        call = self._parse(body, context)
        began_s = time.perf_counter()
        name = ollama_models.meant(call.request.model, self._capabilities.engine.models())
        embedded = await self._embed(call, replace(call.request, model=name))
        return self._body(call, embedded, time.perf_counter() - began_s)

    async def _embed(self, call: ollama.OllamaEmbedCall, request: EmbedRequest) -> Embedded:
        if not request.inputs:
            return await self._embed_nothing(request)
        try:
            return await self._capabilities.embedder.embed(request)
        except ContextLengthExceeded as error:
            most = error.extras.get("max")
            if not call.may_truncate or not isinstance(most, int) or most < 2:
                raise
        # One short of all: an engine that asks for room to answer finds it.
        return await self._capabilities.embedder.embed(await self._cut(request, most - 1))

    async def _embed_nothing(self, request: EmbedRequest) -> Embedded:
        """No vectors, from a model that is there: Ollama's way to load one."""
        await self._capabilities.embedder.embed(replace(request, inputs=(TextPrompt(" "),)))
        return Embedded((), 0)

    async def _cut(self, request: EmbedRequest, most: int) -> EmbedRequest:
        inputs: list[TextPrompt | TokenPrompt] = []
        for prompt in request.inputs:
            read = await self._capabilities.reader.read(
                Request(request.id, request.model, prompt, tenant=request.tenant)
            )
            inputs.append(TokenPrompt(read.tokens[:most]) if len(read.tokens) > most else prompt)
        return replace(request, inputs=tuple(inputs))


class _OllamaModelEndpoints:
    """Describes models without loading any."""

    def __init__(self, capabilities: EngineCapabilities, settings: ServerSettings) -> None:
        self._engine = capabilities.engine
        self._reader = capabilities.reader
        self._settings = settings

    async def tags(self, request: HttpRequest) -> Response:
        """`GET /api/tags`."""
        return json_response(ollama_models.tags(principal(request.scope).visible(self._engine.models())))

    async def processes(self, request: HttpRequest) -> Response:
        """`GET /api/ps`."""
        return json_response(ollama_models.processes(principal(request.scope).visible(self._engine.models())))

    async def version(self, _: HttpRequest) -> Response:
        """`GET /api/version`."""
        return json_response(ollama_models.version())

    async def show(self, request: HttpRequest) -> Response:
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


_PULL_PROGRESS = ProgressFormat(
    NDJSON,
    begun=lambda step: [ollama_models.pull_begun(), ollama_models.pull_progress(step)],
    progress=ollama_models.pull_progress,
    silence=ollama_models.pull_progress,
    done=lambda step: ollama_models.pull_success(),
    failed=ollama_models.pull_failure,
)


class _OllamaPullEndpoint:
    """`POST /api/pull`: downloads and loads a model; the load goes on when its client leaves."""

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
                await stream_progress(step, steps, _PULL_PROGRESS, send, self._settings.keep_alive_s)
                return
            async for _ in steps:
                pass
        await json_response(ollama_models.pull_success().data)(scope, receive, send)


async def _already_loaded(model: ModelState) -> AsyncGenerator[LoadProgress, None]:
    """The progress of a model that is loaded already."""
    yield LoadProgress(model.id, model.status)


def _find_ollama_model(name: str, models: tuple[ModelState, ...]) -> ModelState:
    found = ollama_models.known(name, models)
    if found is None:
        raise ModelNotFound(name[:200])
    return found
