"""Messages, Anthropic's wire.

A stream, in order, each event under its own name: `message_start` with the prompt's usage, one `ping`; for
each block `content_block_start`, `content_block_delta`*, `content_block_stop` with rising index (text_delta,
input_json_delta, or thinking_delta and last a signature_delta); `message_delta` with the stop reason and the
whole usage; `message_stop`. `ping` may come at any time, also first, while the prompt waits. A failure after
the first byte is one `error` and the end, without `message_stop`.
"""

from ganglion.wire.answer_format import AnswerFormat
from ganglion.wire.messages.errors import MessagesError
from ganglion.wire.messages.message_object import MessagesReplyContext
from ganglion.wire.messages.parse import CountCall, parse, parse_count
from ganglion.wire.messages.project import MessagesProjection, body, count_body

__all__ = [
    "ANSWERS",
    "CountCall",
    "MessagesError",
    "MessagesProjection",
    "MessagesReplyContext",
    "body",
    "count_body",
    "parse",
    "parse_count",
]

ANSWERS = (
    AnswerFormat(
        "/v1/messages",
        "msg_",
        parse,
        projection=lambda reply, _: MessagesProjection(reply),
        body=lambda answers, reply: body(answers[0], reply),
    ),
)
