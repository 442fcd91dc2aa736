"""The door of `POST /v1/score`."""

import uuid

from ganglion.core.engine import Engine
from ganglion.server.answers import Answers
from ganglion.server.drain import Gate
from ganglion.server.embeddings import WholeDoor
from ganglion.server.settings import ServerSettings
from ganglion.server.visit import Visit
from ganglion.wire import score


def score_door(engine: Engine, settings: ServerSettings, gate: Gate) -> WholeDoor:
    """Logprobs of a prompt's own tokens."""

    async def answer(body: bytes, visit: Visit) -> bytes:
        request_id = f"score-{uuid.uuid4().hex}"
        call = score.parse(body, request_id=request_id, tenant=visit.tenant, is_strict=settings.is_strict)
        async with Answers(engine, (call.request,), visit=visit, is_folded=True) as answers:
            (whole,) = await answers.whole()
        return score.body(whole, call)

    return WholeDoor(answer, settings, gate)
