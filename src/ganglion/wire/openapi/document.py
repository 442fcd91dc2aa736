"""The OpenAPI 3.1 document of a node or a gateway, with schemas taken from the structs that the wires use."""

from dataclasses import dataclass

import msgspec

from ganglion.core.request import JsonValue
from ganglion.wire.errors import ErrorEnvelope
from ganglion.wire.openapi import answering, anthropic, gateway, node, ollama, reading, state
from ganglion.wire.openapi.operation import JSON, Json, Operation, json_answer, ref

_WIRES = (answering, state, anthropic, reading, ollama)


@dataclass(frozen=True, slots=True)
class Surface:
    """Every route of one kind of server, and the shapes that they take and give."""

    description: str
    greeting: str
    """For people who open it in a browser."""
    operations: tuple[Operation, ...]
    shapes: tuple[type[msgspec.Struct], ...]


NODE = Surface(
    "An inference node. Each route tells errors in the words of its wire.",
    "A node that answers with language models on this machine, in the words of the OpenAI API.",
    tuple(operation for part in (*_WIRES, node) for operation in part.OPERATIONS),
    (ErrorEnvelope, *(shape for part in (*_WIRES, node) for shape in part.SHAPES)),
)
GATEWAY = Surface(
    "Many inference nodes as one. Each route tells errors in the words of its wire.",
    "A gateway that answers with the language models of its nodes, in the words of the OpenAI API.",
    tuple(operation for part in (*_WIRES, gateway) for operation in part.OPERATIONS),
    (ErrorEnvelope, *(shape for part in (*_WIRES, gateway) for shape in part.SHAPES)),
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


def encode(value: Json) -> bytes:
    """The document as it is served."""
    return msgspec.json.encode(value)


def _described(operation: Operation) -> Json:
    answers: Json = dict(operation.answers)
    if operation.can_fail:
        answers["4XX"] = json_answer("The request cannot be answered as it stands.", operation.failure)
        answers["5XX"] = json_answer(
            "The server cannot answer now; a 503 says when to retry.", operation.failure
        )
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
