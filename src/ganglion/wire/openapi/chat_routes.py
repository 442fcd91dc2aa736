"""Chat and completions."""

from ganglion.wire.chat.schema import ChatBody, ChatCompletion, ChatCompletionChunk
from ganglion.wire.completions.schema import Completion, CompletionBody
from ganglion.wire.openapi.operation import JSON, Json, Operation, json_answer, ref, switch
from ganglion.wire.responses.stored import InputTokens

_CHAT_ANSWER: Json = {
    "description": "The answer; with `stream` true, server-sent events that each hold a Chunk.",
    "content": {
        JSON: {"schema": ref("ChatCompletion")},
        "text/event-stream": {},
    },
}
_COMPLETION_ANSWER: Json = {
    "description": "The completions; with `stream` true, server-sent events that each hold a Completion.",
    "content": {JSON: {"schema": ref("Completion")}, "text/event-stream": {}},
}

SHAPES = (
    ChatBody,
    ChatCompletion,
    ChatCompletionChunk,
    CompletionBody,
    Completion,
    InputTokens,
)

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
    Operation(
        "post",
        "/v1/chat/completions/input_tokens",
        "Count the tokens of a conversation without answering it.",
        {"200": json_answer("How many there are.", InputTokens)},
        body="ChatBody",
    ),
    Operation(
        "post",
        "/v1/completions",
        "Continue prompts as they stand, whole or as a stream.",
        {"200": _COMPLETION_ANSWER},
        body="CompletionBody",
    ),
)
