"""The doors of `POST /v1/embeddings` and `POST /v1/rerank`."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Embedder
from ganglion.core.errors import DeadlineExceeded
from ganglion.server.drain import Gate
from ganglion.server.http import json_response, read_json, while_connected
from ganglion.server.scope import visit
from ganglion.server.settings import ServerSettings
from ganglion.server.visit import Visit
from ganglion.wire import embeddings, rerank

Answer = Callable[[bytes, Visit], Awaitable[bytes]]
"""From a body, and for whom it is, to the body of the answer."""


class WholeDoor:
    """Reads a JSON body, answers it with another one, and stops when the client leaves or time is up."""

    def __init__(self, answer: Answer, settings: ServerSettings, gate: Gate) -> None:
        self._answer = answer
        self._settings = settings
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        with self._gate.admit():
            await while_connected(scope, receive, self._respond(body, scope, receive, send))

    async def _respond(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        limit_s = self._settings.deadlines.total_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._answer(body, visit(scope))
        except TimeoutError:
            raise DeadlineExceeded("total", limit_s) from None
        await json_response(answer)(scope, receive, send)


def embeddings_door(embedder: Embedder, settings: ServerSettings, gate: Gate) -> WholeDoor:
    """Vectors."""

    async def answer(body: bytes, who: Visit) -> bytes:
        request_id = f"embd-{uuid.uuid4().hex}"
        call = embeddings.parse(body, request_id=request_id, tenant=who.tenant, is_strict=settings.is_strict)
        return embeddings.body(await embedder.embed(call.request), call)

    return WholeDoor(answer, settings, gate)


def rerank_door(embedder: Embedder, settings: ServerSettings, gate: Gate) -> WholeDoor:
    """Rankings."""

    async def answer(body: bytes, who: Visit) -> bytes:
        request_id = f"rerank-{uuid.uuid4().hex}"
        call = rerank.parse(body, request_id=request_id, tenant=who.tenant, is_strict=settings.is_strict)
        return rerank.body(await embedder.rank(call.request), call)

    return WholeDoor(answer, settings, gate)
