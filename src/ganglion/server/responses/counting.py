"""The door of `POST /v1/responses/input_tokens`: how long a prompt is, without answering it."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.server.drain import Gate
from ganglion.server.http import read_json, while_connected
from ganglion.server.naming import context_of
from ganglion.server.ports import Ports
from ganglion.server.responses.desk import Desk
from ganglion.server.responses.truncating import read_prompt
from ganglion.server.scope import visit
from ganglion.server.settings import ServerSettings
from ganglion.wire.responses.stored import input_tokens


class InputTokensDoor:
    """Counts what a call would send to the model, its history included."""

    def __init__(self, ports: Ports, settings: ServerSettings, gate: Gate, desk: Desk) -> None:
        self._engine = ports.engine
        self._reader = ports.reader
        self._settings = settings
        self._gate = gate
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        with self._gate.admit():
            await while_connected(scope, receive, self._count(body, scope, receive, send))

    async def _count(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = await self._desk.open(body, visit(scope))
        context_length = context_of(self._engine.models(), exchange.call.request.model)
        prompt = await read_prompt(exchange, self._reader, context_length)
        counted = Response(input_tokens(len(prompt.tokens)), media_type="application/json")
        await counted(scope, receive, send)
