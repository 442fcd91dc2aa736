"""Chat completions, OpenAI's first wire.

A stream, in order: one role chunk per choice; content, reasoning and tool-call chunks, interleaved by
`index` when n > 1; one chunk per choice that holds only its `finish_reason`; with
`stream_options.include_usage` one chunk with `choices: []` and the usage (`usage: null` on all others);
`data: [DONE]`. A failure after the first byte is one `data: {"error": …}` and the end, without `[DONE]`.
Silence is filled with comments. With `readout`, a chunk that holds tokens holds their readouts, and
one is sent also where they have no text.
"""

from ganglion.wire.answer_format import AnswerFormat
from ganglion.wire.chat.parse import parse
from ganglion.wire.chat.project import body, chat_projection
from ganglion.wire.chat.schema import ChatReplyContext

__all__ = ["ANSWERS", "ChatReplyContext", "body", "chat_projection", "parse"]

ANSWERS = (AnswerFormat("/v1/chat/completions", "chatcmpl-", parse, chat_projection, body),)
