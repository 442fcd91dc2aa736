"""The operations of completions, as the OpenAPI document has them."""

from ganglion.wire.completions.schema import Completion, CompletionBody
from ganglion.wire.operation import Operation, post, streamed_answer

_SAID = "The completions; with `stream` true, server-sent events that each hold a Completion."

OPERATIONS: tuple[Operation, ...] = (
    post(
        "/v1/completions",
        "Continue prompts as they stand, whole or as a stream.",
        streamed_answer(_SAID, Completion),
        body=CompletionBody,
    ),
)
