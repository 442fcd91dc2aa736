"""The doors of `/tokenize`, `/detokenize`, `/tokenizer_info` and `/apply_template`."""

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ganglion.core.engine import Engine, PromptReader
from ganglion.core.request import Request, TextPrompt
from ganglion.server.drain import Gate
from ganglion.server.embeddings import WholeDoor
from ganglion.server.http import json_response
from ganglion.server.naming import only_model
from ganglion.server.ports import Ports
from ganglion.server.settings import ServerSettings
from ganglion.server.visit import Visit
from ganglion.wire import chat, tokenizer


class TokenizerDoors:
    """Everything about prompts that is no answer to one."""

    def __init__(self, ports: Ports, settings: ServerSettings, gate: Gate) -> None:
        self._engine: Engine = ports.engine
        self._reader: PromptReader = ports.reader
        self._settings = settings
        self.tokenize = WholeDoor(self._tokenize, settings, gate)
        self.detokenize = WholeDoor(self._detokenize, settings, gate)
        self.apply_template = WholeDoor(self._apply_template, settings, gate)

    async def info(self, request: HttpRequest) -> Response:
        """`GET /tokenizer_info`."""
        model = self._named(request.query_params.get("model") or None)
        told = await self._reader.tokenizer_info(model)
        return json_response(tokenizer.info(model, told))

    async def _tokenize(self, body: bytes, visit: Visit) -> bytes:
        call = tokenizer.parse_tokenize(body, is_strict=self._settings.is_strict)
        model = self._named(call.model)
        tokens = (await self._reader.read(self._request(call, model, visit.tenant))).tokens
        pieces = await self._reader.pieces(model, tokens) if call.has_pieces else ()
        info = await self._reader.tokenizer_info(model)
        return tokenizer.tokenized(call, tokens, pieces, info.context_length)

    async def _detokenize(self, body: bytes, _: Visit) -> bytes:
        model, tokens = tokenizer.parse_detokenize(body, is_strict=self._settings.is_strict)
        return tokenizer.detokenized(await self._reader.detokenize(self._named(model), tokens))

    async def _apply_template(self, body: bytes, visit: Visit) -> bytes:
        call = tokenizer.parse_template(body)
        read = await self._reader.read(self._request(call, self._named(call.model), visit.tenant))
        return tokenizer.template(read.text or "")

    def _request(self, call: tokenizer.TokenizeCall, model: str, tenant: str) -> Request:
        if call.chat is None:
            return Request("tokenize", model, TextPrompt(call.text or "", adds_special=call.adds_special))
        arrival = chat.Arrival("tokenize", 0, tenant=tenant, is_strict=self._settings.is_strict)
        return chat.parse(tokenizer.with_model(call.chat, model), arrival).requests[0]

    def _named(self, model: str | None) -> str:
        """The model that is meant; left out, it is the only one here."""
        return only_model(self._engine.models()) if model is None else model
