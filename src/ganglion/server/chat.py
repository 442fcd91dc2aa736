"""The door of `POST /v1/chat/completions`."""

import time
import uuid

from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Engine
from ganglion.server.answers import Answers
from ganglion.server.drain import Gate
from ganglion.server.http import json_response, read_json, stream, while_connected
from ganglion.server.once import left_out, unknown_fields
from ganglion.server.scope import is_on, tenant, visit
from ganglion.server.settings import ServerSettings
from ganglion.wire import chat


class ChatDoor:
    """Parses a call, runs its requests, and streams or returns what they answer."""

    def __init__(self, engine: Engine, settings: ServerSettings, gate: Gate) -> None:
        self._engine = engine
        self._settings = settings
        self._gate = gate
        self._unknown = unknown_fields()
        self._left_out = left_out()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        call = chat.parse(body, self._arrival(scope))
        self._unknown.note(call.unknown_fields)
        self._left_out.note(call.left_out)
        with self._gate.admit():
            await while_connected(scope, receive, self._answer(call, scope, receive, send))

    async def _answer(self, call: chat.ChatCall, scope: Scope, receive: Receive, send: Send) -> None:
        async with Answers(
            self._engine, call.requests, visit=visit(scope), is_folded=not call.is_streamed
        ) as answers:
            if call.is_streamed:
                projection = chat.ChatProjection(call.reply, len(call.requests))
                await stream(answers, projection, send, self._settings)
                return
            whole = chat.body(await answers.whole(), call.reply)
        await json_response(whole)(scope, receive, send)

    def _arrival(self, scope: Scope) -> chat.Arrival:
        return chat.Arrival(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            created_s=int(time.time()),
            fingerprint=f"ganglion-{self._settings.build.version}",
            tenant=tenant(scope),
            keep_markers=is_on(scope, b"x-include-thinking"),
            is_thought_shown=is_on(scope, b"x-thought"),
            is_strict=self._settings.is_strict,
        )
