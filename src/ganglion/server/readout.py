"""The door of `GET /v1/readout/manifest`."""

from starlette.requests import Request
from starlette.responses import Response

from ganglion.core.engine import Engine
from ganglion.core.errors import ModelNotLoaded, ReadoutNotFound
from ganglion.server.http import json_response
from ganglion.server.naming import looked_at
from ganglion.server.scope import visible
from ganglion.wire import readout


class ReadoutDoor:
    """What is read out of a model, answered from memory alone: asking loads nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def manifest(self, request: Request) -> Response:
        """`GET /v1/readout/manifest`."""
        try:
            model = looked_at(request, visible(request.scope, self._engine.models()))
        except ModelNotLoaded as error:
            raise ReadoutNotFound(
                f"The model {error.model!r} has no readouts: it is not loaded.", param="model"
            ) from None
        if model.readout is None:
            raise ReadoutNotFound(
                f"The model {model.id!r} has no readouts: no concepts are loaded for it.", param="model"
            )
        return json_response(readout.manifest(model.id, model.readout))
