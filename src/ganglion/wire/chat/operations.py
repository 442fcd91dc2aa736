"""The operations of chat completions, as the OpenAPI document has them."""

from ganglion.wire.chat.schema import ChatBody, ChatCompletion, ChatCompletionChunk
from ganglion.wire.operation import Operation, post, streamed_answer, switch

OPERATIONS: tuple[Operation, ...] = (
    post(
        "/v1/chat/completions",
        "Answer a conversation, whole or as a stream.",
        streamed_answer(
            "The answer; with `stream` true, server-sent events that each hold a Chunk.",
            ChatCompletion,
            ChatCompletionChunk,
        ),
        body=ChatBody,
        parameters=(
            switch("x-thought", "1 shows reasoning as `thought` at the top level too."),
            switch("x-include-thinking", "1 leaves reasoning inside the content with its markers."),
        ),
    ),
)
