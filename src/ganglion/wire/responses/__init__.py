"""Responses, OpenAI's second wire.

A stream, in order: `response.created` (number 0); `response.queued` when the request waits or runs in the
background; `response.in_progress`; then each item of the output:

* `response.output_item.added`, in progress and empty;
* a message: `content_part.added`, `output_text.delta`*, `output_text.done`, `content_part.done`;
* reasoning: `content_part.added`, `reasoning_text.delta`*, `reasoning_text.done`, `content_part.done`;
* a function call: `function_call_arguments.delta`*, `.done`;
* a custom tool call: `custom_tool_call_input.delta`*, `.done`;
* `response.output_item.done`, the whole item;

and exactly one of `response.completed`, `response.incomplete`, `response.failed`. Numbers rise by one. Over
server-sent events `[DONE]` follows, without a name or a number; over a WebSocket it does not. Silence is
filled with `response.in_progress`, again and again. An item that a failure cuts off has no `done` events.
"""

from ganglion.wire.responses.compaction import compacted, flat
from ganglion.wire.responses.events import ENDING
from ganglion.wire.responses.items import Item
from ganglion.wire.responses.reading import Ids, encode_items, items_of, kept_items
from ganglion.wire.responses.reply import Reply
from ganglion.wire.responses.request import (
    Arrival,
    Asked,
    ResponsesCall,
    call_of,
    compact_body,
    parse,
    read,
)
from ganglion.wire.responses.stream import ResponsesProjection
from ganglion.wire.responses.truncation import characters_of, shortened
from ganglion.wire.responses.whole import body

__all__ = [
    "ENDING",
    "Arrival",
    "Asked",
    "Ids",
    "Item",
    "Reply",
    "ResponsesCall",
    "ResponsesProjection",
    "body",
    "call_of",
    "characters_of",
    "compact_body",
    "compacted",
    "encode_items",
    "flat",
    "items_of",
    "kept_items",
    "parse",
    "read",
    "shortened",
]
