"""The OpenAPI 3.1 document of a node or a gateway, with schemas taken from the structs that the wires use."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ganglion.core.request import JsonValue
from ganglion.wire.dialects import DIALECTS
from ganglion.wire.operation import JSON, Json, Operation, Shapes, json_answer, ref
from ganglion.wire.prompt_routes import PROMPT_OPERATIONS
from ganglion.wire.route_aliases import aliases_of
from ganglion.wire.server_routes import GATEWAY_OPERATIONS, NODE_OPERATIONS

_WIRES: tuple[Operation, ...] = (
    *(operation for each in DIALECTS if each.has_operations for operation in each.operations),
    *PROMPT_OPERATIONS,
)


_FAILURES = {
    "4XX": "The request cannot be answered as it stands.",
    "5XX": "The server cannot answer now; a 503 says when to retry.",
}


def _named(*operations: Operation) -> tuple[Operation, ...]:
    """The operations, and each again under its other names."""
    others = [
        replace(operation, path=alias, summary=f"Another name of `{operation.path}`.")
        for operation in operations
        for alias in aliases_of(operation.path)
    ]
    return (*operations, *others)


@dataclass(frozen=True, slots=True)
class Surface:
    """Every route of one kind of server, and the shapes that they take and give."""

    description: str
    greeting: str
    """For people who open it in a browser."""
    operations: tuple[Operation, ...]
    shapes: Shapes


def _described_by(own: tuple[Operation, ...]) -> tuple[tuple[Operation, ...], Shapes]:
    """The operations of every wire and of a server's own routes, and the shapes of these and of a node's."""
    described = (*_WIRES, *own, *NODE_OPERATIONS)
    shapes = dict.fromkeys(shape for operation in described for shape in operation.shapes)
    return _named(*_WIRES, *own), tuple(shapes)


NODE = Surface(
    "An inference node. Each route tells errors in the words of its wire.",
    "A node that answers with language models on this machine, in the words of the OpenAI API.",
    *_described_by(NODE_OPERATIONS),
)
GATEWAY = Surface(
    "Many inference nodes as one. Each route tells errors in the words of its wire.",
    "A gateway that answers with the language models of its nodes, in the words of the OpenAI API.",
    *_described_by(GATEWAY_OPERATIONS),
)
OPERATIONS: tuple[Operation, ...] = NODE.operations


def document(version: str, surface: Surface = NODE) -> Json:
    """The whole document."""
    paths: dict[str, JsonValue] = {}
    for operation in surface.operations:
        methods = paths.setdefault(operation.path, {})
        assert isinstance(methods, dict)
        methods[operation.method] = _described(operation)
    _, schemas = msgspec.json.schema_components(surface.shapes, ref_template="#/components/schemas/{name}")
    for body in {operation.body for operation in surface.operations if operation.body is not None}:
        _let_model_be_left_out(schemas[body])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ganglion",
            "version": version,
            "description": surface.description,
        },
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _let_model_be_left_out(schema: dict[str, Any]) -> None:
    """A body's struct demands a model; whoever reads it fills in the only one that is loaded."""
    required = schema.get("required", [])
    if "model" in required:
        schema["required"] = [name for name in required if name != "model"]
        schema["properties"]["model"]["description"] = "Left out, the only model that is loaded."


def encode(value: Json) -> bytes:
    """The document as it is served."""
    return msgspec.json.encode(value)


def _described(operation: Operation) -> Json:
    answers: Json = {status: answer.json for status, answer in operation.answers.items()}
    if operation.can_fail:
        for status, said in _FAILURES.items():
            answers[status] = json_answer(said, *operation.failures).json
    described: Json = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "responses": answers,
    }
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": ref(operation.body)}}}
    if operation.is_public:
        described["security"] = []
    return described


def _operation_id(operation: Operation) -> str:
    words = operation.path.replace("{", "").replace("}", "").replace(".", "/").split("/")
    return "_".join([operation.method, *filter(None, words)])
