"""The door of `POST /v1/completions`."""

import time
import uuid

from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Engine
from ganglion.server.answers import Answers
from ganglion.server.drain import Gate
from ganglion.server.http import json_response, read_json, stream, while_connected
from ganglion.server.once import unknown_fields
from ganglion.server.scope import tenant, visit
from ganglion.server.settings import ServerSettings
from ganglion.wire import completions

# One call may hold a thousand prompts: enough of them at once to fill a batch, and no engine's whole queue.
_AT_ONCE = 32


class CompletionsDoor:
    """Parses a call, runs its requests, and streams or returns what they answer."""

    def __init__(self, engine: Engine, settings: ServerSettings, gate: Gate) -> None:
        self._engine = engine
        self._settings = settings
        self._gate = gate
        self._unknown = unknown_fields()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        call = completions.parse(body, self._arrival(scope))
        self._unknown.note(call.unknown_fields)
        with self._gate.admit():
            await while_connected(scope, receive, self._answer(call, scope, receive, send))

    async def _answer(
        self, call: completions.CompletionCall, scope: Scope, receive: Receive, send: Send
    ) -> None:
        answering = Answers(
            self._engine, call.requests, visit=visit(scope), at_once=_AT_ONCE, is_folded=not call.is_streamed
        )
        async with answering as answers:
            if call.is_streamed:
                projection = completions.CompletionProjection(call.reply, len(call.requests))
                await stream(answers, projection, send, self._settings)
                return
            whole = completions.body(await answers.whole(), call.reply)
        await json_response(whole)(scope, receive, send)

    def _arrival(self, scope: Scope) -> completions.Arrival:
        return completions.Arrival(
            id=f"cmpl-{uuid.uuid4().hex}",
            created_s=int(time.time()),
            fingerprint=f"ganglion-{self._settings.build.version}",
            tenant=tenant(scope),
            is_strict=self._settings.is_strict,
        )
