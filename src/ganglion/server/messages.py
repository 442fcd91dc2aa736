"""The doors of `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

import logging
import uuid

from starlette.types import Receive, Scope, Send

from ganglion.server.answers import Answers
from ganglion.server.drain import Gate
from ganglion.server.http import json_response, read_json, stream, while_connected
from ganglion.server.once import left_out, unknown_fields
from ganglion.server.ports import Ports
from ganglion.server.scope import request_id, tenant, visit
from ganglion.server.settings import ServerSettings
from ganglion.wire import messages
from ganglion.wire.seal import HmacSeal

logger = logging.getLogger("ganglion.server")


class MessagesDoor:
    """Parses a call, runs its request, and streams or returns what it answers."""

    def __init__(self, ports: Ports, settings: ServerSettings, gate: Gate, seal: HmacSeal) -> None:
        self._engine = ports.engine
        self._settings = settings
        self._gate = gate
        self._seal = seal
        self._unknown = unknown_fields()
        self._left_out = left_out()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        call = messages.parse(body, arrival(scope, self._settings, self._seal))
        self._unknown.note(call.unknown_fields)
        self._left_out.note(f"the tool {name!r}, which is not run here" for name in call.dropped_tools)
        self._left_out.note(call.left_out)
        _tell_unsealed(call, scope)
        with self._gate.admit():
            await while_connected(scope, receive, self._answer(call, scope, receive, send))

    async def _answer(self, call: messages.MessagesCall, scope: Scope, receive: Receive, send: Send) -> None:
        async with Answers(
            self._engine, (call.request,), visit=visit(scope), is_folded=not call.is_streamed
        ) as answers:
            if call.is_streamed:
                await stream(answers, messages.MessagesProjection(call.reply), send, self._settings)
                return
            (answer,) = await answers.whole()
        whole = messages.body(answer, call.reply)
        await json_response(whole)(scope, receive, send)


class CountTokensDoor:
    """Says how long a prompt is, without answering it."""

    def __init__(self, ports: Ports, settings: ServerSettings, gate: Gate, seal: HmacSeal) -> None:
        self._reader = ports.reader
        self._settings = settings
        self._gate = gate
        self._seal = seal
        self._unknown = unknown_fields()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        call = messages.parse_count(body, arrival(scope, self._settings, self._seal))
        self._unknown.note(call.unknown_fields)
        with self._gate.admit():
            await while_connected(scope, receive, self._count(call, scope, receive, send))

    async def _count(self, call: messages.CountCall, scope: Scope, receive: Receive, send: Send) -> None:
        read = await self._reader.read(call.request)
        counted = messages.count_body(len(read.tokens))
        await json_response(counted)(scope, receive, send)


def arrival(scope: Scope, settings: ServerSettings, seal: HmacSeal) -> messages.Arrival:
    """What is known of a request besides its body."""
    return messages.Arrival(
        id=f"msg_{uuid.uuid4().hex}",
        request_id=request_id(scope),
        seal=seal,
        tenant=tenant(scope),
        is_strict=settings.is_strict,
    )


def _tell_unsealed(call: messages.MessagesCall, scope: Scope) -> None:
    if call.unsealed_thoughts:
        logger.debug(
            "%d thinking blocks without our seal were left out, request_id=%s",
            call.unsealed_thoughts,
            request_id(scope),
        )
