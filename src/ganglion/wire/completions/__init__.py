"""Text completions, OpenAI's oldest wire: a prompt as it stands, no template.

A stream, in order: with `echo` one chunk per choice that holds the prompt and its logprobs; chunks of text,
interleaved by `index`; one chunk per choice with its `finish_reason`; with `stream_options.include_usage` one
chunk with `choices: []` and the usage (`usage: null` on all others); `data: [DONE]`. A failure after the
first byte is one `data: {"error": …}` and the end, without `[DONE]`. Silence is filled with comments. With
`readout`, a chunk that holds tokens holds their readouts, and one is sent also where they have no text.
"""

from ganglion.wire.answer_format import AnswerFormat
from ganglion.wire.completions.parse import parse
from ganglion.wire.completions.project import body, completion_projection
from ganglion.wire.completions.schema import CompletionReplyContext

__all__ = ["ANSWERS", "CompletionReplyContext", "body", "completion_projection", "parse"]

# One call may hold a thousand prompts: enough of them at once to fill a batch, and no engine's whole queue.
ANSWERS = (AnswerFormat("/v1/completions", "cmpl-", parse, completion_projection, body, at_once=32),)
