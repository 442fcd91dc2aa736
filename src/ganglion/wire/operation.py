"""One method of one route, and the pieces that descriptions are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ganglion.core.request import JsonValue
from ganglion.wire.dialects import PUBLIC_PATHS
from ganglion.wire.openai_errors import ErrorEnvelope

Json = dict[str, JsonValue]
Shapes = tuple[type[msgspec.Struct], ...]
"""What bodies are made of."""

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route."""

    method: str
    path: str
    summary: str
    answers: Json
    body: str | None = None
    parameters: Sequence[Json] = ()
    can_fail: bool = True
    failures: tuple[type[msgspec.Struct], ...] = (ErrorEnvelope,)
    """One for each wire that the route speaks."""

    @property
    def is_public(self) -> bool:
        """Whether it answers without a key."""
        return self.path in PUBLIC_PATHS


class DescribedRoutes(Protocol):
    """A module that describes routes, and the shapes that they take and give."""

    OPERATIONS: tuple[Operation, ...]
    SHAPES: Shapes


def ref(name: str) -> Json:
    """A shape by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def content(description: str, media_type: str, schema: Json) -> Json:
    """A body of some media type."""
    return {"description": description, "content": {media_type: {"schema": schema}}}


def json_answer(description: str, shape: type[msgspec.Struct]) -> Json:
    """A JSON body of this shape."""
    return content(description, JSON, ref(shape.__name__))


def either(description: str, *shapes: type[msgspec.Struct]) -> Json:
    """A JSON body of one of these shapes."""
    if len(shapes) == 1:
        return json_answer(description, *shapes)
    return content(description, JSON, {"anyOf": [ref(shape.__name__) for shape in shapes]})


def text_answer(description: str, media_type: str) -> Json:
    """A body of text."""
    return content(description, media_type, {"type": "string"})


def optional(name: str, description: str, schema: Json, *, where: str = "query") -> Json:
    """A parameter that may be left out."""
    return {"name": name, "in": where, "required": False, "description": description, "schema": schema}


def switch(name: str, description: str) -> Json:
    """A header that 1 switches on; whatever else it says does not."""
    return optional(name, description, {"type": "string", "examples": ["1"]}, where="header")
