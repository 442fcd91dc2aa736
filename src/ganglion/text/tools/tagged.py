"""`<tool_call>` blocks: JSON as Hermes and Qwen write it, or Qwen's XML with a tag for each parameter."""

import json
import re
from collections.abc import Mapping

from ganglion.core.request import Tool
from ganglion.text.tools.cursor import Cursor, NotACall, Reading
from ganglion.text.tools.json_calls import ended, json_calls
from ganglion.text.tools.schema_types import json_of_text

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
FUNCTION = "<function="
NAME = re.compile(r"[^<>\n]*")


def read_tagged(cursor: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read the block behind `<tool_call>`, or a function whose tag came without it."""
    if opening == FUNCTION:
        yield from _functions(cursor, tools)
    elif (yield from cursor.skip_space()) == "<":
        yield from cursor.need(FUNCTION)
        yield from _functions(cursor, tools)
    else:
        yield from ended(cursor, json_calls(cursor, CLOSING))
    yield from cursor.skip_space()
    yield from cursor.take(CLOSING)


def _functions(cursor: Cursor, tools: Mapping[str, Tool]) -> Reading[None]:
    while True:
        yield from _function(cursor, tools)
        yield from cursor.skip_space()
        if not (yield from cursor.take(FUNCTION)):
            return


def _function(cursor: Cursor, tools: Mapping[str, Tool]) -> Reading[None]:
    name = (yield from cursor.run(NAME)).strip()
    yield from cursor.need(">")
    cursor.call(name)
    cursor.emit_arguments("{")
    separator = ""
    while True:
        yield from cursor.skip_space()
        if (yield from cursor.take("</function>")):
            break
        if not (yield from cursor.take("<parameter=")):
            if (yield from cursor.peek()) == "":
                raise NotACall
            break
        parameter = (yield from cursor.run(NAME)).strip()
        yield from cursor.need(">")
        text = yield from cursor.until("</parameter>")
        yield from cursor.need("</parameter>")
        # The templates write each value on lines of its own.
        text = text.removeprefix("\n").removesuffix("\n")
        written = json_of_text(text, tools[name], parameter)
        cursor.emit_arguments(f"{separator}{json.dumps(parameter, ensure_ascii=False)}: {written}")
        separator = ", "
    cursor.emit_arguments("}")
    cursor.end()
