"""The door of `GET /v1/readout/manifest`."""

from starlette.requests import Request
from starlette.responses import Response

from ganglion.core.engine import Engine
from ganglion.core.errors import ModelLoading, ReadoutNotFound
from ganglion.server.http import json_response
from ganglion.server.naming import known_model, only_model
from ganglion.wire import readout


class ReadoutDoor:
    """What is read out of a model, answered from memory alone: asking loads nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def manifest(self, request: Request) -> Response:
        """`GET /v1/readout/manifest`."""
        states = self._engine.models()
        model = known_model(states, request.query_params.get("model") or only_model(states))
        if model.status in ("loading", "downloading"):
            raise ModelLoading(f"The model {model.id!r} is still loading.", param="model")
        if model.readout is None:
            is_here = model.status in ("loaded", "recovering")
            reason = "no concepts are loaded for it" if is_here else "it is not loaded"
            raise ReadoutNotFound(f"The model {model.id!r} has no readouts: {reason}.", param="model")
        return json_response(readout.manifest(model.id, model.readout))
