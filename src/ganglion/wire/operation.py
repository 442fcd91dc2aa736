"""One method of one route, and the pieces that descriptions are made of."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from ganglion.core.request import JsonValue
from ganglion.wire.dialects import PUBLIC_PATHS
from ganglion.wire.openai_errors import ErrorEnvelope

Json = dict[str, JsonValue]
Shapes = tuple[type[msgspec.Struct], ...]
"""What bodies are made of."""

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class DescribedAnswer:
    """An answer as the document has it, and the shapes that it names."""

    json: Json
    shapes: Shapes = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route."""

    method: str
    path: str
    summary: str
    answers: Mapping[str, DescribedAnswer]
    takes: type[msgspec.Struct] | None = None
    parameters: Sequence[Json] = ()
    can_fail: bool = True
    failures: Shapes = (ErrorEnvelope,)
    """One for each wire that the route speaks."""

    @property
    def body(self) -> str | None:
        """The name of what it takes."""
        return None if self.takes is None else self.takes.__name__

    @property
    def shapes(self) -> Shapes:
        """What it takes and gives."""
        given = tuple(shape for answer in self.answers.values() for shape in answer.shapes)
        return (*(() if self.takes is None else (self.takes,)), *given, *self.failures)

    @property
    def is_public(self) -> bool:
        """Whether it answers without a key."""
        return self.path in PUBLIC_PATHS


_ID: Final[Json] = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
}
_PATH_PARAMETERS: Final[Mapping[str, Json]] = {
    "id": _ID,
    "item": _ID | {"name": "item"},
    "model": {
        "name": "model",
        "in": "path",
        "required": True,
        "description": "A model id; ids may hold slashes, which callers percent-encode or not.",
        "schema": {"type": "string"},
    },
}


def _operation(
    method: str,
    path: str,
    summary: str,
    answer: str | DescribedAnswer,
    *shapes: type[msgspec.Struct],
    body: type[msgspec.Struct] | None = None,
    parameters: Sequence[Json] = (),
    failures: Shapes = (ErrorEnvelope,),
) -> Operation:
    """An operation whose good answer is JSON of one of these shapes, where it is not described in full."""
    known = [_PATH_PARAMETERS[name] for name in re.findall(r"{(\w+)}", path)]
    good = answer if isinstance(answer, DescribedAnswer) else json_answer(answer, *shapes)
    return Operation(method, path, summary, {"200": good}, body, (*known, *parameters), failures=failures)


get: Final = partial(_operation, "get")
post: Final = partial(_operation, "post")
delete: Final = partial(_operation, "delete")


def ref(name: str) -> Json:
    """A shape by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def content(description: str, media_type: str, schema: Json) -> DescribedAnswer:
    """A body of some media type."""
    return DescribedAnswer({"description": description, "content": {media_type: {"schema": schema}}})


def json_answer(description: str, *shapes: type[msgspec.Struct]) -> DescribedAnswer:
    """A JSON body of one of these shapes."""
    refs: list[JsonValue] = [ref(shape.__name__) for shape in shapes]
    schema = ref(shapes[0].__name__) if len(shapes) == 1 else Json({"anyOf": refs})
    return DescribedAnswer(content(description, JSON, schema).json, shapes)


def streamed_answer(
    description: str,
    shape: type[msgspec.Struct],
    *events: type[msgspec.Struct],
    media_type: str = "text/event-stream",
) -> DescribedAnswer:
    """A JSON body of this shape, or a stream of these events where one is asked for."""
    schemas: Json = {JSON: {"schema": ref(shape.__name__)}, media_type: {}}
    return DescribedAnswer({"description": description, "content": schemas}, (shape, *events))


def text_answer(description: str, media_type: str) -> DescribedAnswer:
    """A body of text."""
    return content(description, media_type, {"type": "string"})


def optional(name: str, description: str, schema: Json, *, where: str = "query") -> Json:
    """A parameter that may be left out."""
    return {"name": name, "in": where, "required": False, "description": description, "schema": schema}


def switch(name: str, description: str) -> Json:
    """A header that 1 switches on; whatever else it says does not."""
    return optional(name, description, {"type": "string", "examples": ["1"]}, where="header")
