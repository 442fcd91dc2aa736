"""The doors of Ollama's wire that answer: `/api/chat`, `/api/generate`, `/api/embed`, `/api/embeddings`."""

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Embedded, EmbedRequest, ModelHolder
from ganglion.core.errors import ContextLengthExceeded
from ganglion.core.request import Request, TextPrompt, TokenPrompt
from ganglion.server.answers import Answers
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.endpoints.http import json_response, read_json, stream, while_connected
from ganglion.server.endpoints.models import NDJSON, OllamaModelEndpoints, OllamaPullEndpoint, require_holder
from ganglion.server.gate import Gate
from ganglion.server.middleware.auth import AdminOnly, require_admin
from ganglion.server.middleware.scope import principal, tenant
from ganglion.server.settings import ServerSettings
from ganglion.server.truncation import TruncatingEngine
from ganglion.wire import ollama
from ganglion.wire.ollama import ollama_models

logger = logging.getLogger("ganglion.server")

# Field and model names are the clients' to choose: remember enough for every real one.
_REMEMBERED = 1024
_SHOWN = 64


def ollama_routes(
    ports: EngineCapabilities, settings: ServerSettings, gate: Gate, holder: ModelHolder | None
) -> list[Route]:
    """Everything under `/api/`."""
    chat = OllamaAnswerEndpoint(ollama.parse_chat, ports, settings, gate, holder)
    generate = OllamaAnswerEndpoint(ollama.parse_generate, ports, settings, gate, holder)
    views = OllamaModelEndpoints(ports, settings)
    embed = OllamaEmbedEndpoint(ollama.parse_embed, ollama.embed_body, ports, settings, gate)
    embeddings = OllamaEmbedEndpoint(ollama.parse_embeddings, ollama.embeddings_body, ports, settings, gate)
    return [
        Route("/api/chat", chat, methods=["POST"]),
        Route("/api/generate", generate, methods=["POST"]),
        Route("/api/embed", embed, methods=["POST"]),
        Route("/api/embeddings", embeddings, methods=["POST"]),
        Route("/api/show", views.show, methods=["POST"]),
        Route(
            "/api/pull",
            AdminOnly(OllamaPullEndpoint(ports.engine, settings, holder), "pull models"),
            methods=["POST"],
        ),
        Route("/api/tags", views.tags),
        Route("/api/ps", views.processes),
        Route("/api/version", views.version),
    ]


class OllamaAnswerEndpoint:
    """Chat or generate: parses a call, and streams or returns its answer, or only loads or unloads."""

    def __init__(
        self,
        parse: Callable[[bytes, ollama.OllamaParseContext], ollama.OllamaAnswerCall],
        ports: EngineCapabilities,
        settings: ServerSettings,
        gate: Gate,
        holder: ModelHolder | None,
    ) -> None:
        self._parse = parse
        self._engine = ports.engine
        self._settings = settings
        self._gate = gate
        self._holder = holder
        self._once = _SeenNames()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings, is_any_type=True)
        call = self._parse(body, _arrival(scope, self._settings))
        self._note(call)
        with self._gate.admit():
            await while_connected(scope, receive, self._answer(call, scope, receive, send))

    async def _answer(
        self, call: ollama.OllamaAnswerCall, scope: Scope, receive: Receive, send: Send
    ) -> None:
        request = replace(call.request, model=ollama_models.meant(call.request.model, self._engine.models()))
        if call.purpose == "unload":
            require_admin(scope, "unload models")
            await require_holder(self._holder).unload(request.model, is_forced=False)
            await json_response(ollama.empty_reply(call.reply, "unload"))(scope, receive, send)
            return
        is_streamed = call.is_streamed and call.purpose == "answer"
        engine = TruncatingEngine(self._engine) if call.may_truncate else self._engine
        async with Answers(engine, (request,), visit=principal(scope), is_folded=not is_streamed) as answers:
            if is_streamed:
                projection = ollama.OllamaProjection(call.reply)
                await stream(answers, projection, send, self._settings, framing=NDJSON)
                return
            (answer,) = await answers.whole()
        if call.purpose == "load":
            whole = ollama.empty_reply(call.reply, "load")
        else:
            whole = ollama.body(answer, call.reply)
        await json_response(whole)(scope, receive, send)

    def _note(self, call: ollama.OllamaAnswerCall) -> None:
        for field in call.unknown_fields:
            if self._once.is_new(field):
                logger.debug("a client sent the unknown field %r", field[:_SHOWN])
        model = ollama_models.known(call.request.model, self._engine.models())
        if model is None or call.context_tokens is None or not model.context_length:
            return
        # Clients ask for room they may never use. A prompt that needs it is refused, so nothing is lost.
        if call.context_tokens > model.context_length and self._once.is_new(f"num_ctx of {model.id}"):
            logger.warning(
                "a client asks %s for a context of %d tokens; it has %d",
                model.id,
                call.context_tokens,
                model.context_length,
            )


class OllamaEmbedEndpoint:
    """Texts to vectors, new words or old."""

    def __init__(
        self,
        parse: Callable[[bytes, ollama.OllamaParseContext], ollama.OllamaEmbedCall],
        body: Callable[[ollama.OllamaEmbedCall, Embedded, float], bytes],
        ports: EngineCapabilities,
        settings: ServerSettings,
        gate: Gate,
    ) -> None:
        self._parse = parse
        self._body = body
        self._ports = ports
        self._settings = settings
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings, is_any_type=True)
        call = self._parse(body, _arrival(scope, self._settings))
        with self._gate.admit():
            await while_connected(scope, receive, self._answer(call, scope, receive, send))

    async def _answer(self, call: ollama.OllamaEmbedCall, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = time.perf_counter()
        name = ollama_models.meant(call.request.model, self._ports.engine.models())
        embedded = await self._embed(call, replace(call.request, model=name))
        whole = self._body(call, embedded, time.perf_counter() - began_s)
        await json_response(whole)(scope, receive, send)

    async def _embed(self, call: ollama.OllamaEmbedCall, request: EmbedRequest) -> Embedded:
        if not request.inputs:
            return await self._embed_nothing(request)
        try:
            return await self._ports.embedder.embed(request)
        except ContextLengthExceeded as error:
            most = error.extras.get("max")
            if not call.may_truncate or not isinstance(most, int) or most < 2:
                raise
        # One short of all: an engine that asks for room to answer finds it.
        return await self._ports.embedder.embed(await self._cut(request, most - 1))

    async def _embed_nothing(self, request: EmbedRequest) -> Embedded:
        """No vectors, from a model that is there: Ollama's way to load one."""
        await self._ports.embedder.embed(replace(request, inputs=(TextPrompt(" "),)))
        return Embedded((), 0)

    async def _cut(self, request: EmbedRequest, most: int) -> EmbedRequest:
        inputs: list[TextPrompt | TokenPrompt] = []
        for prompt in request.inputs:
            read = await self._ports.reader.read(
                Request(request.id, request.model, prompt, tenant=request.tenant)
            )
            inputs.append(TokenPrompt(read.tokens[:most]) if len(read.tokens) > most else prompt)
        return replace(request, inputs=tuple(inputs))


class _SeenNames:
    """Remembers what has been said, so that it is said once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def is_new(self, text: str) -> bool:
        """Whether to say it: not if it was, nor once too much has been."""
        shown = text[:_SHOWN]
        if shown in self._said or len(self._said) >= _REMEMBERED:
            return False
        self._said.add(shown)
        return True


def _arrival(scope: Scope, settings: ServerSettings) -> ollama.OllamaParseContext:
    return ollama.OllamaParseContext(
        id=f"ollama-{uuid.uuid4().hex}",
        created_s=time.time(),
        tenant=tenant(scope),
        is_strict=settings.is_strict,
    )
