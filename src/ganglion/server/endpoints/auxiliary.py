"""The endpoints that ask a model for anything but an answer: vectors, rankings, scores, tokens, templates."""

import uuid

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ganglion.core.engine import Embedder, Engine, PromptReader
from ganglion.core.errors import WireUnsupported
from ganglion.core.request import PLACEHOLDER, Request, TextPrompt
from ganglion.server.answers import Answers
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.endpoints.http import JsonEndpoint, json_response
from ganglion.server.gate import Gate
from ganglion.server.middleware.model_lookup import known_model, loaded_model, only_model
from ganglion.server.middleware.principal import Principal
from ganglion.server.middleware.request_log import unknown_field_log
from ganglion.server.middleware.scope import principal
from ganglion.server.settings import ServerSettings
from ganglion.wire import chat, embeddings, messages, rerank, score, tokenizer
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.decode import with_model
from ganglion.wire.responses.stored import input_tokens
from ganglion.wire.seal import HmacSeal


def embeddings_endpoint(embedder: Embedder, settings: ServerSettings, gate: Gate) -> JsonEndpoint:
    """Turns texts into vectors."""

    async def answer(body: bytes, principal: Principal) -> bytes:
        request_id = f"embd-{uuid.uuid4().hex}"
        tenant, is_strict = principal.tenant, settings.is_strict
        call = embeddings.parse(body, request_id=request_id, tenant=tenant, is_strict=is_strict)
        return embeddings.body(await embedder.embed(call.request), call)

    return JsonEndpoint(answer, settings, gate)


def rerank_endpoint(embedder: Embedder, settings: ServerSettings, gate: Gate) -> JsonEndpoint:
    """Ranks documents by a query."""

    async def answer(body: bytes, principal: Principal) -> bytes:
        request_id = f"rerank-{uuid.uuid4().hex}"
        tenant, is_strict = principal.tenant, settings.is_strict
        call = rerank.parse(body, request_id=request_id, tenant=tenant, is_strict=is_strict)
        return rerank.body(await embedder.rank(call.request), call)

    return JsonEndpoint(answer, settings, gate)


def score_endpoint(engine: Engine, settings: ServerSettings, gate: Gate) -> JsonEndpoint:
    """Gives the logprobs of a prompt's own tokens."""

    async def answer(body: bytes, principal: Principal) -> bytes:
        request_id = f"score-{uuid.uuid4().hex}"
        tenant, is_strict = principal.tenant, settings.is_strict
        call = score.parse(body, request_id=request_id, tenant=tenant, is_strict=is_strict)
        async with Answers(engine, (call.request,), principal=principal, is_folded=True) as answers:
            (whole,) = await answers.whole()
        return score.body(whole, call)

    return JsonEndpoint(answer, settings, gate)


class TokenizerEndpoints:
    """Tokens, templates and counts of prompts; nothing is generated."""

    def __init__(
        self, capabilities: EngineCapabilities, settings: ServerSettings, gate: Gate, seal: HmacSeal
    ) -> None:
        self._engine: Engine = capabilities.engine
        self._reader: PromptReader = capabilities.reader
        self._settings = settings
        self.tokenize = JsonEndpoint(self._tokenize, settings, gate)
        self.detokenize = JsonEndpoint(self._detokenize, settings, gate)
        self.apply_template = JsonEndpoint(self._apply_template, settings, gate)
        self.count_chat = JsonEndpoint(self._count_chat, settings, gate)
        self.count_messages = JsonEndpoint(self._count_messages, settings, gate)
        self._seal = seal
        self._unknown = unknown_field_log()

    async def info(self, request: HttpRequest) -> Response:
        """`GET /tokenizer_info`."""
        name = request.query_params.get("model")
        model = loaded_model(request, principal(request.scope).visible(self._engine.models())).id
        info = await self._reader.tokenizer_info(model)
        return json_response(tokenizer.info(name or model, info))

    async def _tokenize(self, body: bytes, principal: Principal) -> bytes:
        call = tokenizer.parse_tokenize(body, is_strict=self._settings.is_strict)
        model = self._named(call.model)
        tokens = (await self._reader.read(self._request(call, model, principal.tenant))).tokens
        pieces = await self._pieces(model, tokens, principal.tenant) if call.has_pieces else ()
        return tokenizer.tokenized(call, tokens, pieces, await self._context_length(model))

    async def _pieces(self, model: str, tokens: tuple[int, ...], tenant: str) -> tuple[bytes, ...]:
        """The bytes of each token; a place of an image has none."""
        said = tuple(token for token in tokens if token != PLACEHOLDER)
        pieces = iter(await self._reader.pieces(model, said, tenant=tenant))
        return tuple(b"" if token == PLACEHOLDER else next(pieces) for token in tokens)

    async def _context_length(self, model: str) -> int:
        try:
            return (await self._reader.tokenizer_info(model)).context_length
        except WireUnsupported:  # a foreign server that counts, and says nothing else of its tokenizer
            return known_model(self._engine.models(), model).context_length

    async def _detokenize(self, body: bytes, principal: Principal) -> bytes:
        model, tokens = tokenizer.parse_detokenize(body, is_strict=self._settings.is_strict)
        text = await self._reader.detokenize(self._named(model), tokens, tenant=principal.tenant)
        return tokenizer.detokenized(text)

    async def _apply_template(self, body: bytes, principal: Principal) -> bytes:
        call = tokenizer.parse_template(body)
        model = self._named(call.model)
        read = await self._reader.read(self._request(call, model, principal.tenant))
        if read.text is None:
            raise WireUnsupported(f"The server that holds {model!r} counts prompts and does not show them.")
        return tokenizer.template(read.text)

    async def _count_chat(self, body: bytes, principal: Principal) -> bytes:
        context = ParseContext("count", 0, tenant=principal.tenant, is_strict=self._settings.is_strict)
        read = await self._reader.read(chat.parse(body, context).requests[0])
        return input_tokens(len(read.tokens))

    async def _count_messages(self, body: bytes, principal: Principal) -> bytes:
        request_id, tenant = f"msg_{uuid.uuid4().hex}", principal.tenant
        context = ParseContext(request_id, tenant=tenant, is_strict=self._settings.is_strict, seal=self._seal)
        call = messages.parse_count(body, context)
        self._unknown.log(call.unknown_fields)
        return messages.count_body(len((await self._reader.read(call.request)).tokens))

    def _request(self, call: tokenizer.TokenizeCall, model: str, tenant: str) -> Request:
        if call.chat is None:
            return Request("tokenize", model, TextPrompt(call.text or "", adds_special=call.adds_special))
        return self._chat_request("tokenize", with_model(call.chat, model), tenant)

    def _chat_request(self, request_id: str, body: bytes, tenant: str) -> Request:
        context = ParseContext(request_id, 0, tenant=tenant, is_strict=self._settings.is_strict)
        return chat.parse(body, context).requests[0]

    def _named(self, model: str | None) -> str:
        """The model that is named; left out, it is the only one here."""
        return only_model(self._engine.models()) if model is None else model
