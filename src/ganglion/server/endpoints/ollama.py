"""The endpoints of Ollama's wire beside those that answer: vectors, and the list and fetching of models."""

import time
from collections.abc import Callable
from dataclasses import replace

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Embedded, EmbedRequest, ModelHolder
from ganglion.core.errors import ContextLengthExceeded
from ganglion.core.request import Request, TextPrompt, TokenPrompt
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.endpoints.answer import parse_context
from ganglion.server.endpoints.http import json_response, read_json, while_connected
from ganglion.server.endpoints.models import OllamaModelEndpoints, OllamaPullEndpoint
from ganglion.server.gate import Gate
from ganglion.server.middleware.auth import AdminOnly
from ganglion.server.settings import ServerSettings
from ganglion.wire import ollama
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.ollama import ollama_models


def ollama_routes(
    capabilities: EngineCapabilities, settings: ServerSettings, gate: Gate, holder: ModelHolder | None
) -> list[Route]:
    """Everything under `/api/` but the routes that answer."""
    views = OllamaModelEndpoints(capabilities, settings)
    embed = OllamaEmbedEndpoint(ollama.parse_embed, ollama.embed_body, capabilities, settings, gate)
    embeddings = OllamaEmbedEndpoint(
        ollama.parse_embeddings, ollama.embeddings_body, capabilities, settings, gate
    )
    return [
        Route("/api/embed", embed, methods=["POST"]),
        Route("/api/embeddings", embeddings, methods=["POST"]),
        Route("/api/show", views.show, methods=["POST"]),
        Route(
            "/api/pull",
            AdminOnly(OllamaPullEndpoint(capabilities.engine, settings, holder), "pull models"),
            methods=["POST"],
        ),
        Route("/api/tags", views.tags),
        Route("/api/ps", views.processes),
        Route("/api/version", views.version),
    ]


class OllamaEmbedEndpoint:
    """Texts to vectors, new words or old."""

    def __init__(
        self,
        parse: Callable[[bytes, ParseContext], ollama.OllamaEmbedCall],
        body: Callable[[ollama.OllamaEmbedCall, Embedded, float], bytes],
        capabilities: EngineCapabilities,
        settings: ServerSettings,
        gate: Gate,
    ) -> None:
        self._parse = parse
        self._body = body
        self._capabilities = capabilities
        self._settings = settings
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings, is_any_type=True)
        call = self._parse(body, parse_context(scope, self._settings, "ollama-"))
        with self._gate.admit():
            await while_connected(scope, receive, self._answer(call, scope, receive, send))

    async def _answer(self, call: ollama.OllamaEmbedCall, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = time.perf_counter()
        name = ollama_models.meant(call.request.model, self._capabilities.engine.models())
        embedded = await self._embed(call, replace(call.request, model=name))
        whole = self._body(call, embedded, time.perf_counter() - began_s)
        await json_response(whole)(scope, receive, send)

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
