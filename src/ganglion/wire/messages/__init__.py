"""Messages, Anthropic's wire.

A stream, in order, each event under its own name: `message_start` with the prompt's usage, one `ping`; for
each block `content_block_start`, `content_block_delta`*, `content_block_stop` with rising index (text_delta,
input_json_delta, or thinking_delta and last a signature_delta); `message_delta` with the stop reason and the
whole usage; `message_stop`. `ping` may come at any time, also first, while the prompt waits. A failure after
the first byte is one `error` and the end, without `message_stop`.
"""

from ganglion.wire.messages.refusal import ErrorMessage, status_of, told
from ganglion.wire.messages.reply import Reply
from ganglion.wire.messages.request import Arrival, CountCall, MessagesCall, parse, parse_count
from ganglion.wire.messages.stream import MessagesProjection
from ganglion.wire.messages.whole import body, count_body

__all__ = [
    "Arrival",
    "CountCall",
    "ErrorMessage",
    "MessagesCall",
    "MessagesProjection",
    "Reply",
    "body",
    "count_body",
    "parse",
    "parse_count",
    "status_of",
    "told",
]
