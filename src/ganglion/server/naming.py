"""Which model is meant where a call may leave it out, and what may be looked at without loading it."""

from collections.abc import Callable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganglion.core.engine import ModelState
from ganglion.core.errors import InvalidValue, ModelLoading, ModelNotFound, ModelNotLoaded
from ganglion.core.request import Sampling
from ganglion.gateway.only_model import only_of
from ganglion.server.scope import visible
from ganglion.wire.decode import ModelLeftOut, with_model

HERE: Final = ("loaded", "recovering")
COMING: Final = ("loading", "downloading")


def only_model(states: Sequence[ModelState]) -> str:
    """The id of the only model that is loaded, or about to be; raises MissingParameter."""
    return only_of({state.id for state in states if state.status in (*HERE, *COMING)})


def known_model(states: Sequence[ModelState], name: str) -> ModelState:
    """The model with this id, or this alias in any case; raises ModelNotFound."""
    found = _find(states, name)
    if found is None:
        raise ModelNotFound(name[:200], hint="GET /v1/models lists them.")
    return found


def sampling_of(states: Sequence[ModelState], name: str) -> Sampling:
    """A model's own defaults, as far as they are known before it is asked."""
    found = _find(states, name)
    return Sampling() if found is None else found.sampling


def context_of(states: Sequence[ModelState], name: str) -> int:
    """How long a model's context is; 0 where nobody says."""
    found = _find(states, name)
    return 0 if found is None else found.context_length


def _find(states: Sequence[ModelState], name: str) -> ModelState | None:
    for state in states:
        if name == state.id:
            return state
    for state in states:
        if name.casefold() in map(str.casefold, state.aliases):
            return state
    return None


def looked_at(request: Request, states: Sequence[ModelState]) -> ModelState:
    """The model that a GET is about, by its query: looking at a model finds and loads none.

    Raises ModelNotFound and ModelLoading for one that is not here.
    """
    name = request.query_params.get("model") or only_model(states)
    if not name.strip():
        raise InvalidValue("Expected the name of a model in 'model', found only blanks.", param="model")
    model = known_model(states, name)
    if model.status in COMING:
        raise ModelLoading(f"The model {model.id!r} is still loading.", param="model")
    if model.status not in HERE:
        raise ModelNotLoaded(model.id, hint="A GET loads none: ask it something, or have it loaded.")
    return model


class FillsModelIn:
    """An app whose JSON bodies may leave their model out: then the only one that is loaded is meant."""

    def __init__(self, app: ASGIApp, models: Callable[[], Sequence[ModelState]]) -> None:
        self._app = app
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(dict(scope), receive, send)
        except ModelLeftOut as missing:
            # Told before anything was answered: a body is read whole before anybody is asked.
            model = only_model(visible(scope, self._models()))
            body = with_model(missing.body, model)
        else:
            return
        await self._app(scope, _heard_again(body, receive), send)


def _heard_again(body: bytes, receive: Receive) -> Receive:
    """What a client says after its body, and before that this body instead of its own."""
    is_said = False

    async def hear() -> Message:
        nonlocal is_said
        if is_said:
            return await receive()
        is_said = True
        return {"type": "http.request", "body": body, "more_body": False}

    return hear
