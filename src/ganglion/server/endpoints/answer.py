"""The endpoint on which models answer, the same for every wire."""

import logging
import time
import uuid
from dataclasses import replace
from typing import Any

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ganglion.core.engine import ModelHolder, find_model
from ganglion.core.request import Request
from ganglion.server.answers import Answers
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.endpoints.http import json_response, read_json, stream_answers, while_connected
from ganglion.server.endpoints.models import require_holder
from ganglion.server.gate import Gate
from ganglion.server.middleware.auth import require_admin
from ganglion.server.middleware.request_log import LogOnce, ignored_field_log, unknown_field_log
from ganglion.server.middleware.scope import header, principal, request_id
from ganglion.server.settings import ServerSettings
from ganglion.server.truncation import TruncatingEngine
from ganglion.wire.answer_format import AnswerFormat, ParseContext, ParsedCall
from ganglion.wire.dialects import DIALECTS
from ganglion.wire.headers import INCLUDE_THINKING
from ganglion.wire.seal import HmacSeal

_logger = logging.getLogger("ganglion.server")

_Call = ParsedCall[Any]


def answer_routes(
    capabilities: EngineCapabilities,
    settings: ServerSettings,
    gate: Gate,
    holder: ModelHolder | None,
    seal: HmacSeal,
) -> list[Route]:
    """Every route on which a model answers, but those of wires with a service of their own."""
    return [
        Route(
            answers.path,
            _AnswerEndpoint(answers, capabilities, settings, gate, holder=holder, seal=seal),
            methods=["POST"],
        )
        for dialect in DIALECTS
        for answers in dialect.answers
    ]


def _parse_context(
    scope: Scope, settings: ServerSettings, id_prefix: str, seal: HmacSeal | None = None
) -> ParseContext:
    """What is known of a request besides its body."""
    return ParseContext(
        id=f"{id_prefix}{uuid.uuid4().hex}",
        created_s=time.time(),
        fingerprint=f"ganglion-{settings.build.version}",
        tenant=principal(scope).tenant,
        keep_markers=header(scope, INCLUDE_THINKING) == b"1",
        shows_thought=header(scope, b"x-thought") == b"1",
        is_strict=settings.is_strict,
        request_id=request_id(scope),
        seal=seal,
    )


class _AnswerEndpoint:
    """Parses a call, runs its requests, and streams or returns what they answer; or only loads or unloads."""

    def __init__(
        self,
        answers: AnswerFormat[Any],
        capabilities: EngineCapabilities,
        settings: ServerSettings,
        gate: Gate,
        *,
        holder: ModelHolder | None,
        seal: HmacSeal,
    ) -> None:
        self._format = answers
        self._engine = capabilities.engine
        self._settings = settings
        self._gate = gate
        self._holder = holder
        self._seal = seal
        self._unknown = unknown_field_log()
        self._ignored = ignored_field_log()
        self._contexts = LogOnce("a client asks %s", logging.WARNING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings, is_any_type=self._format.is_any_type)
        call = self._format.parse(
            body, _parse_context(scope, self._settings, self._format.id_prefix, self._seal)
        )
        del body  # with images it is megabytes, which an answer may outlast by minutes
        self._log(call, scope)
        with self._gate.admit():
            await while_connected(scope, receive, self._answer(call, scope, receive, send))

    async def _answer(self, call: _Call, scope: Scope, receive: Receive, send: Send) -> None:
        answer_format, requests = self._format, self._resolved(call)
        is_streamed = call.is_streamed and call.purpose == "answer"
        if call.purpose == "unload":
            require_admin(scope, "unload models")
            await require_holder(self._holder).unload(requests[0].model, is_forced=False)
        else:
            engine = TruncatingEngine(self._engine) if call.may_truncate else self._engine
            async with Answers(
                engine,
                requests,
                principal=principal(scope),
                at_once=answer_format.at_once,
                is_folded=not is_streamed,
            ) as answers:
                if is_streamed:
                    projection = answer_format.projection(call.reply, len(requests))
                    await stream_answers(
                        answers, projection, scope, send, self._settings, framing=answer_format.framing
                    )
                    return
                whole = await answers.whole()
        if call.purpose == "answer":
            body = answer_format.body(whole, call.reply)
        else:
            assert answer_format.empty_body is not None
            body = answer_format.empty_body(call.reply, call.purpose)
        await json_response(body)(scope, receive, send)

    def _resolved(self, call: _Call) -> tuple[Request, ...]:
        """The requests with the model's name as the engine knows it."""
        resolve = self._format.resolve_model
        if resolve is None:
            return call.requests
        models = self._engine.models()
        return tuple(replace(each, model=resolve(each.model, models)) for each in call.requests)

    def _log(self, call: _Call, scope: Scope) -> None:
        if call.unknown_fields:
            self._unknown.log(call.unknown_fields)
        if call.ignored:
            self._ignored.log(call.ignored)
        for remark in call.remarks:
            _logger.debug("%s, request_id=%s", remark, request_id(scope))
        if call.context_tokens is None:
            return
        model = find_model(self._engine.models(), self._resolved(call)[0].model)
        # Clients ask for room they may never use. A prompt that needs it is refused, so nothing is lost.
        if model is not None and 0 < model.context_length < call.context_tokens:
            asked = f"{model.id} for a context of {call.context_tokens} tokens"
            self._contexts.log([f"{asked}; it has {model.context_length}"])
