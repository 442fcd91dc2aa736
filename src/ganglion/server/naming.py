"""Which model is meant where a call may leave it out."""

from collections.abc import Sequence

from ganglion.core.engine import ModelState
from ganglion.core.errors import MissingParameter, ModelNotFound


def only_model(states: Sequence[ModelState]) -> str:
    """The id of the only model that is loaded, or else held; raises MissingParameter where several are."""
    loaded = [state.id for state in states if state.status in ("loaded", "recovering")]
    for ids in (loaded, [state.id for state in states]):
        if len(ids) == 1:
            return ids[0]
    raise MissingParameter(
        "The parameter 'model' is required: not exactly one model is here.",
        param="model",
        hint="GET /v1/models lists them.",
    )


def known_model(states: Sequence[ModelState], name: str) -> ModelState:
    """The model with this id, or this alias in any case; raises ModelNotFound."""
    for state in states:
        if name == state.id:
            return state
    for state in states:
        if name.casefold() in map(str.casefold, state.aliases):
            return state
    raise ModelNotFound(name[:200], hint="GET /v1/models lists them.")
