"""The operations of Messages, as the OpenAPI document has them."""

from ganglion.wire.messages.errors import MessagesError
from ganglion.wire.messages.message_object import CountTokensReply, MessageObject
from ganglion.wire.messages.schema import CountBody, MessagesBody
from ganglion.wire.operation import Operation, post, streamed_answer

OPERATIONS: tuple[Operation, ...] = (
    post(
        "/v1/messages",
        "Answer a conversation in the words of Anthropic's wire.",
        streamed_answer("The answer; with `stream` true, named server-sent events.", MessageObject),
        body=MessagesBody,
        failures=(MessagesError,),
    ),
    post(
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation.",
        "The count.",
        CountTokensReply,
        body=CountBody,
        failures=(MessagesError,),
    ),
)
