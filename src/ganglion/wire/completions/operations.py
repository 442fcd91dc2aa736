"""The operations of completions, as the OpenAPI document has them."""

from ganglion.wire.completions.schema import Completion, CompletionBody
from ganglion.wire.operation import JSON, Json, Operation, Shapes, ref

_COMPLETION_ANSWER: Json = {
    "description": "The completions; with `stream` true, server-sent events that each hold a Completion.",
    "content": {JSON: {"schema": ref("Completion")}, "text/event-stream": {}},
}


SHAPES: Shapes = (CompletionBody, Completion)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/completions",
        "Continue prompts as they stand, whole or as a stream.",
        {"200": _COMPLETION_ANSWER},
        body="CompletionBody",
    ),
)
