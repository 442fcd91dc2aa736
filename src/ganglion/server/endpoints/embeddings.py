"""The endpoints of `POST /v1/embeddings`, `POST /v1/rerank` and `POST /v1/score`."""

import uuid

from ganglion.core.engine import Embedder, Engine
from ganglion.server.answers import Answers
from ganglion.server.endpoints.http import JsonEndpoint
from ganglion.server.gate import Gate
from ganglion.server.middleware.principal import Principal
from ganglion.server.settings import ServerSettings
from ganglion.wire import embeddings, rerank, score


def embeddings_endpoint(embedder: Embedder, settings: ServerSettings, gate: Gate) -> JsonEndpoint:
    """Turns texts into vectors."""

    async def answer(body: bytes, principal: Principal) -> bytes:
        request_id = f"embd-{uuid.uuid4().hex}"
        tenant, is_strict = principal.tenant, settings.is_strict
        call = embeddings.parse(body, request_id=request_id, tenant=tenant, is_strict=is_strict)
        return embeddings.body(await embedder.embed(call.request), call)

    return JsonEndpoint(answer, settings, gate)


def rerank_endpoint(embedder: Embedder, settings: ServerSettings, gate: Gate) -> JsonEndpoint:
    """Ranks documents by a query."""

    async def answer(body: bytes, principal: Principal) -> bytes:
        request_id = f"rerank-{uuid.uuid4().hex}"
        tenant, is_strict = principal.tenant, settings.is_strict
        call = rerank.parse(body, request_id=request_id, tenant=tenant, is_strict=is_strict)
        return rerank.body(await embedder.rank(call.request), call)

    return JsonEndpoint(answer, settings, gate)


def score_endpoint(engine: Engine, settings: ServerSettings, gate: Gate) -> JsonEndpoint:
    """Gives the logprobs of a prompt's own tokens."""

    async def answer(body: bytes, principal: Principal) -> bytes:
        request_id = f"score-{uuid.uuid4().hex}"
        tenant, is_strict = principal.tenant, settings.is_strict
        call = score.parse(body, request_id=request_id, tenant=tenant, is_strict=is_strict)
        async with Answers(engine, (call.request,), principal=principal, is_folded=True) as answers:
            (whole,) = await answers.whole()
        return score.body(whole, call)

    return JsonEndpoint(answer, settings, gate)
