"""Anthropic's wire."""

from ganglion.wire.messages.asked import CountBody, MessagesBody
from ganglion.wire.messages.refusal import ErrorMessage
from ganglion.wire.messages.reply import AnsweredMessage, TokenCount
from ganglion.wire.openapi.operation import JSON, Json, Operation, json_answer, ref

_MESSAGES_ANSWER: Json = {
    "description": "The answer; with `stream` true, named server-sent events.",
    "content": {JSON: {"schema": ref("AnsweredMessage")}, "text/event-stream": {}},
}

SHAPES = (
    MessagesBody,
    CountBody,
    AnsweredMessage,
    TokenCount,
    ErrorMessage,
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/messages",
        "Answer a conversation in the words of Anthropic's wire.",
        {"200": _MESSAGES_ANSWER},
        body="MessagesBody",
        failures=(ErrorMessage,),
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation.",
        {"200": json_answer("The count.", TokenCount)},
        body="CountBody",
        failures=(ErrorMessage,),
    ),
)
