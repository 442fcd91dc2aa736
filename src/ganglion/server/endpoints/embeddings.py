"""The doors of `POST /v1/embeddings` and `POST /v1/rerank`."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Embedder, Engine
from ganglion.core.errors import DeadlineExceeded
from ganglion.server.answers import Answers
from ganglion.server.endpoints.http import json_response, read_json, while_connected
from ganglion.server.gate import Gate
from ganglion.server.middleware.principal import Principal
from ganglion.server.middleware.scope import principal
from ganglion.server.settings import ServerSettings
from ganglion.wire import embeddings, rerank, score

AnswerBody = Callable[[bytes, Principal], Awaitable[bytes]]
"""From a body, and for whom it is, to the body of the answer."""


class JsonEndpoint:
    """Reads a JSON body, answers it with another one, and stops when the client leaves or time is up."""

    def __init__(self, answer: AnswerBody, settings: ServerSettings, gate: Gate) -> None:
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
                answer = await self._answer(body, principal(scope))
        except TimeoutError:
            raise DeadlineExceeded("total", limit_s) from None
        await json_response(answer)(scope, receive, send)


def embeddings_endpoint(embedder: Embedder, settings: ServerSettings, gate: Gate) -> JsonEndpoint:
    """Vectors."""

    async def answer(body: bytes, who: Principal) -> bytes:
        request_id = f"embd-{uuid.uuid4().hex}"
        call = embeddings.parse(body, request_id=request_id, tenant=who.tenant, is_strict=settings.is_strict)
        return embeddings.body(await embedder.embed(call.request), call)

    return JsonEndpoint(answer, settings, gate)


def rerank_endpoint(embedder: Embedder, settings: ServerSettings, gate: Gate) -> JsonEndpoint:
    """Rankings."""

    async def answer(body: bytes, who: Principal) -> bytes:
        request_id = f"rerank-{uuid.uuid4().hex}"
        call = rerank.parse(body, request_id=request_id, tenant=who.tenant, is_strict=settings.is_strict)
        return rerank.body(await embedder.rank(call.request), call)

    return JsonEndpoint(answer, settings, gate)


def score_endpoint(engine: Engine, settings: ServerSettings, gate: Gate) -> JsonEndpoint:
    """Logprobs of a prompt's own tokens."""

    async def answer(body: bytes, visit: Principal) -> bytes:
        request_id = f"score-{uuid.uuid4().hex}"
        call = score.parse(body, request_id=request_id, tenant=visit.tenant, is_strict=settings.is_strict)
        async with Answers(engine, (call.request,), visit=visit, is_folded=True) as answers:
            (whole,) = await answers.whole()
        return score.body(whole, call)

    return JsonEndpoint(answer, settings, gate)
