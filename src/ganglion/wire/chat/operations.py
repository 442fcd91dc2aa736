"""The operations of chat completions, as the OpenAPI document has them."""

from ganglion.wire.chat.schema import ChatBody, ChatCompletion, ChatCompletionChunk
from ganglion.wire.operation import JSON, Json, Operation, Shapes, ref, switch

_CHAT_ANSWER: Json = {
    "description": "The answer; with `stream` true, server-sent events that each hold a Chunk.",
    "content": {
        JSON: {"schema": ref("ChatCompletion")},
        "text/event-stream": {},
    },
}

SHAPES: Shapes = (ChatBody, ChatCompletion, ChatCompletionChunk)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a conversation, whole or as a stream.",
        {"200": _CHAT_ANSWER},
        body="ChatBody",
        parameters=(
            switch("x-thought", "1 shows reasoning as `thought` at the top level too."),
            switch("x-include-thinking", "1 leaves reasoning inside the content with its markers."),
        ),
    ),
)
