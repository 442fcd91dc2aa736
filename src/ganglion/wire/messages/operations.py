"""The operations of Messages, as the OpenAPI document has them."""

from ganglion.wire.messages.errors import MessagesError
from ganglion.wire.messages.message_object import CountTokensReply, MessageObject
from ganglion.wire.messages.schema import CountBody, MessagesBody
from ganglion.wire.operation import JSON, Json, Operation, Shapes, json_answer, ref

_MESSAGES_ANSWER: Json = {
    "description": "The answer; with `stream` true, named server-sent events.",
    "content": {JSON: {"schema": ref("MessageObject")}, "text/event-stream": {}},
}

SHAPES: Shapes = (
    MessagesBody,
    CountBody,
    MessageObject,
    CountTokensReply,
    MessagesError,
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/messages",
        "Answer a conversation in the words of Anthropic's wire.",
        {"200": _MESSAGES_ANSWER},
        body="MessagesBody",
        failures=(MessagesError,),
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation.",
        {"200": json_answer("The count.", CountTokensReply)},
        body="CountBody",
        failures=(MessagesError,),
    ),
)
