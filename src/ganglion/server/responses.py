"""The door of `POST /v1/responses`, of a server that keeps nothing: each call brings its whole history."""

import logging
import secrets
import time
import uuid

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Engine
from ganglion.core.errors import ConversationNotFound, PreviousResponseNotFound, UnsupportedParameter
from ganglion.server.answers import Answers
from ganglion.server.drain import Gate
from ganglion.server.http import read_json, stream, while_connected
from ganglion.server.scope import is_on, tenant
from ganglion.server.settings import ServerSettings
from ganglion.wire import responses
from ganglion.wire.seal import HmacSeal

logger = logging.getLogger("ganglion.server")


class ResponsesDoor:
    """Parses a call, runs its request, and streams or returns the response."""

    def __init__(self, engine: Engine, settings: ServerSettings, gate: Gate) -> None:
        self._engine = engine
        self._settings = settings
        self._gate = gate
        self._seal = HmacSeal(secrets.token_bytes(32))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        asked = responses.read(body, is_strict=self._settings.is_strict)
        _refuse_state(asked)
        call = responses.call_of(asked, self._arrival(scope))
        for warning in call.warnings:
            logger.debug("of a request: %s", warning)
        with self._gate.admit():
            await while_connected(scope, receive, self._answer(call, scope, receive, send))

    async def _answer(
        self, call: responses.ResponsesCall, scope: Scope, receive: Receive, send: Send
    ) -> None:
        seal = self._seal.of(tenant(scope))
        async with Answers(self._engine, (call.request,)) as answers:
            if call.is_streamed:
                projection = responses.ResponsesProjection(
                    call.reply, ids=_fresh_id, clock_s=_now_s, seal=seal
                )
                await stream(answers, projection, send, self._settings)
                return
            (answer,) = await answers.whole()
        whole = responses.body(answer, call.reply, ids=_fresh_id, clock_s=_now_s, seal=seal)
        await Response(whole, media_type="application/json")(scope, receive, send)

    def _arrival(self, scope: Scope) -> responses.Arrival:
        return responses.Arrival(
            id=_fresh_id("resp"),
            created_s=_now_s(),
            ids=_fresh_id,
            tenant=tenant(scope),
            seal=self._seal.of(tenant(scope)),
            can_store=False,
            keep_markers=is_on(scope, b"x-include-thinking"),
        )


def _refuse_state(asked: responses.Asked) -> None:
    if asked.previous_response_id is not None:
        raise PreviousResponseNotFound(
            f"There is no response {asked.previous_response_id!r} here.", param="previous_response_id"
        )
    if asked.conversation_id is not None:
        raise ConversationNotFound(
            f"There is no conversation {asked.conversation_id!r} here.", param="conversation"
        )
    if asked.body.background:
        raise UnsupportedParameter("The parameter 'background' is not supported.", param="background")


def _fresh_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _now_s() -> int:
    return int(time.time())
