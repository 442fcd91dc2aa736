"""Which model is meant where a request names none: the only one that is loaded."""

from collections.abc import Collection
from typing import Final

from ganglion.core.errors import MissingParameter

_LISTED: Final = 10


def only_of(loaded: Collection[str]) -> str:
    """The only one; raises MissingParameter, which names those that could be meant."""
    if len(loaded) == 1:
        return next(iter(loaded))
    names = sorted(loaded)
    more = ", …" if len(names) > _LISTED else ""
    found = f"loaded are {', '.join(names[:_LISTED])}{more}" if names else "no model is loaded"
    raise MissingParameter(
        f"The parameter 'model' is required: {found}.", param="model", hint="GET /v1/models lists them."
    )
