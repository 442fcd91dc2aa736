"""The door of `POST /v1/chat/completions`."""

import logging
import time
import uuid

from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Engine
from ganglion.server.answers import Answers
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.endpoints.http import json_response, read_json, stream, while_connected
from ganglion.server.gate import Gate
from ganglion.server.middleware.request_log import ignored_field_log, unknown_field_log
from ganglion.server.middleware.scope import is_on, principal, request_id, tenant
from ganglion.server.settings import ServerSettings
from ganglion.wire import chat, completions, messages
from ganglion.wire.headers import INCLUDE_THINKING
from ganglion.wire.seal import HmacSeal

logger = logging.getLogger("ganglion.server")


class MessagesEndpoint:
    """Parses a call, runs its request, and streams or returns what it answers."""

    def __init__(
        self, ports: EngineCapabilities, settings: ServerSettings, gate: Gate, seal: HmacSeal
    ) -> None:
        self._engine = ports.engine
        self._settings = settings
        self._gate = gate
        self._seal = seal
        self._unknown = unknown_field_log()
        self._left_out = ignored_field_log()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        call = messages.parse(body, _messages_arrival(scope, self._settings, self._seal))
        self._unknown.note(call.unknown_fields)
        self._left_out.note(f"the tool {name!r}, which is not run here" for name in call.dropped_tools)
        self._left_out.note(call.left_out)
        _log_unsealed(call, scope)
        with self._gate.admit():
            await while_connected(scope, receive, self._answer(call, scope, receive, send))

    async def _answer(self, call: messages.MessagesCall, scope: Scope, receive: Receive, send: Send) -> None:
        async with Answers(
            self._engine, (call.request,), visit=principal(scope), is_folded=not call.is_streamed
        ) as answers:
            if call.is_streamed:
                await stream(answers, messages.MessagesProjection(call.reply), send, self._settings)
                return
            (answer,) = await answers.whole()
        whole = messages.body(answer, call.reply)
        await json_response(whole)(scope, receive, send)


class CountTokensEndpoint:
    """Says how long a prompt is, without answering it."""

    def __init__(
        self, ports: EngineCapabilities, settings: ServerSettings, gate: Gate, seal: HmacSeal
    ) -> None:
        self._reader = ports.reader
        self._settings = settings
        self._gate = gate
        self._seal = seal
        self._unknown = unknown_field_log()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        call = messages.parse_count(body, _messages_arrival(scope, self._settings, self._seal))
        self._unknown.note(call.unknown_fields)
        with self._gate.admit():
            await while_connected(scope, receive, self._count(call, scope, receive, send))

    async def _count(self, call: messages.CountCall, scope: Scope, receive: Receive, send: Send) -> None:
        read = await self._reader.read(call.request)
        counted = messages.count_body(len(read.tokens))
        await json_response(counted)(scope, receive, send)


def _messages_arrival(
    scope: Scope, settings: ServerSettings, seal: HmacSeal
) -> messages.MessagesParseContext:
    """What is known of a request besides its body."""
    return messages.MessagesParseContext(
        id=f"msg_{uuid.uuid4().hex}",
        request_id=request_id(scope),
        seal=seal,
        tenant=tenant(scope),
        is_strict=settings.is_strict,
    )


def _log_unsealed(call: messages.MessagesCall, scope: Scope) -> None:
    if call.unsealed_thoughts:
        logger.debug(
            "%d thinking blocks without our seal were left out, request_id=%s",
            call.unsealed_thoughts,
            request_id(scope),
        )


# One call may hold a thousand prompts: enough of them at once to fill a batch, and no engine's whole queue.
_CONCURRENT_PROMPTS = 32


class CompletionsEndpoint:
    """Parses a call, runs its requests, and streams or returns what they answer."""

    def __init__(self, engine: Engine, settings: ServerSettings, gate: Gate) -> None:
        self._engine = engine
        self._settings = settings
        self._gate = gate
        self._unknown = unknown_field_log()

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
            self._engine,
            call.requests,
            visit=principal(scope),
            at_once=_CONCURRENT_PROMPTS,
            is_folded=not call.is_streamed,
        )
        async with answering as answers:
            if call.is_streamed:
                projection = completions.CompletionProjection(call.reply, len(call.requests))
                await stream(answers, projection, send, self._settings)
                return
            whole = completions.body(await answers.whole(), call.reply)
        await json_response(whole)(scope, receive, send)

    def _arrival(self, scope: Scope) -> completions.CompletionParseContext:
        return completions.CompletionParseContext(
            id=f"cmpl-{uuid.uuid4().hex}",
            created_s=int(time.time()),
            fingerprint=f"ganglion-{self._settings.build.version}",
            tenant=tenant(scope),
            is_strict=self._settings.is_strict,
        )


class ChatEndpoint:
    """Parses a call, runs its requests, and streams or returns what they answer."""

    def __init__(self, engine: Engine, settings: ServerSettings, gate: Gate) -> None:
        self._engine = engine
        self._settings = settings
        self._gate = gate
        self._unknown = unknown_field_log()
        self._left_out = ignored_field_log()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        call = chat.parse(body, self._arrival(scope))
        self._unknown.note(call.unknown_fields)
        self._left_out.note(call.left_out)
        with self._gate.admit():
            await while_connected(scope, receive, self._answer(call, scope, receive, send))

    async def _answer(self, call: chat.ChatCall, scope: Scope, receive: Receive, send: Send) -> None:
        async with Answers(
            self._engine, call.requests, visit=principal(scope), is_folded=not call.is_streamed
        ) as answers:
            if call.is_streamed:
                projection = chat.ChatProjection(call.reply, len(call.requests))
                await stream(answers, projection, send, self._settings)
                return
            whole = chat.body(await answers.whole(), call.reply)
        await json_response(whole)(scope, receive, send)

    def _arrival(self, scope: Scope) -> chat.ChatParseContext:
        return chat.ChatParseContext(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            created_s=int(time.time()),
            fingerprint=f"ganglion-{self._settings.build.version}",
            tenant=tenant(scope),
            keep_markers=is_on(scope, INCLUDE_THINKING),
            is_thought_shown=is_on(scope, b"x-thought"),
            is_strict=self._settings.is_strict,
        )
