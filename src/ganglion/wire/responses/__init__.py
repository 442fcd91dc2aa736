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
from ganglion.wire.responses.item_codec import Ids, encode_items, items_of, kept_items
from ganglion.wire.responses.items import Item
from ganglion.wire.responses.parse import (
    ParsedResponsesBody,
    ResponsesCall,
    ResponsesParseContext,
    build_call,
    compact_body,
    parse,
    parse_body,
)
from ganglion.wire.responses.project import ResponsesProjection, body
from ganglion.wire.responses.prompt_builder import prompt_characters, without_oldest_turns
from ganglion.wire.responses.response_object import ResponsesReplyContext
from ganglion.wire.responses.stream_events import ENDING

__all__ = [
    "ENDING",
    "Ids",
    "Item",
    "ParsedResponsesBody",
    "ResponsesCall",
    "ResponsesParseContext",
    "ResponsesProjection",
    "ResponsesReplyContext",
    "body",
    "build_call",
    "compact_body",
    "compacted",
    "encode_items",
    "flat",
    "items_of",
    "kept_items",
    "parse",
    "parse_body",
    "prompt_characters",
    "without_oldest_turns",
]
