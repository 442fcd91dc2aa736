"""Models by name: the only one where a call leaves it out, and those that a GET may describe."""

from collections.abc import Callable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganglion.core.engine import ModelState, find_model
from ganglion.core.errors import InvalidValue, ModelLoading, ModelNotFound, ModelNotLoaded
from ganglion.core.sampling import Sampling
from ganglion.gateway.routing.decision import only_loaded_model
from ganglion.server.middleware.scope import principal
from ganglion.wire.decode import ModelOmitted, with_model

_LOADED_STATES: Final = ("loaded", "recovering")
_LOADING_STATES: Final = ("loading", "downloading")


def only_model(states: Sequence[ModelState]) -> str:
    """The id of the only model that is loaded, or about to be; raises MissingParameter."""
    return only_loaded_model(
        {state.id for state in states if state.status in (*_LOADED_STATES, *_LOADING_STATES)}
    )


def known_model(states: Sequence[ModelState], name: str) -> ModelState:
    """The model with this id, or this alias in any case; raises ModelNotFound."""
    found = find_model(states, name)
    if found is None:
        raise ModelNotFound(name[:200], hint="GET /v1/models lists them.")
    return found


def default_sampling(states: Sequence[ModelState], name: str) -> Sampling:
    """A model's own default sampling; empty where it is not known yet."""
    found = find_model(states, name)
    return Sampling() if found is None else found.sampling


def context_length_of(states: Sequence[ModelState], name: str) -> int:
    """The length of a model's context; 0 where it is not known."""
    found = find_model(states, name)
    return 0 if found is None else found.context_length


def loaded_model(request: Request, states: Sequence[ModelState]) -> ModelState:
    """The model that a GET names in its query: a GET finds and loads none.

    Raises ModelNotFound and ModelLoading for one that is not here.
    """
    name = request.query_params.get("model") or only_model(states)
    if not name.strip():
        raise InvalidValue("Expected the name of a model in 'model', found only blanks.", param="model")
    model = known_model(states, name)
    if model.status in _LOADING_STATES:
        raise ModelLoading(f"The model {model.id!r} is still loading.", param="model")
    if model.status not in _LOADED_STATES:
        raise ModelNotLoaded(model.id, hint="A GET loads none: ask it something, or have it loaded.")
    return model


class DefaultModel:
    """Fills in the model of JSON bodies that leave it out, where only one is loaded."""

    def __init__(self, app: ASGIApp, models: Callable[[], Sequence[ModelState]]) -> None:
        self._app = app
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(dict(scope), receive, send)
        except ModelOmitted as missing:
            # Raised before anything was answered: a body is read whole before an engine is asked.
            model = only_model(principal(scope).visible(self._models()))
            body = with_model(missing.body, model)
        else:
            return
        await self._app(scope, _replacing_body(body, receive), send)


def _replacing_body(body: bytes, receive: Receive) -> Receive:
    """Receives this body instead of the client's own, and then what the client sends after it."""
    is_received = False

    async def received() -> Message:
        nonlocal is_received
        if is_received:
            return await receive()
        is_received = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received
