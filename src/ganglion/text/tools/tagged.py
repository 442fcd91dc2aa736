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


def read_tagged(tape: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read the block behind `<tool_call>`, or a function whose tag came without it."""
    if opening == FUNCTION:
        yield from _functions(tape, tools)
    elif (yield from tape.skip_space()) == "<":
        yield from tape.need(FUNCTION)
        yield from _functions(tape, tools)
    else:
        yield from ended(tape, json_calls(tape, CLOSING))
    yield from tape.skip_space()
    yield from tape.take(CLOSING)


def _functions(tape: Cursor, tools: Mapping[str, Tool]) -> Reading[None]:
    while True:
        yield from _function(tape, tools)
        yield from tape.skip_space()
        if not (yield from tape.take(FUNCTION)):
            return


def _function(tape: Cursor, tools: Mapping[str, Tool]) -> Reading[None]:
    name = (yield from tape.run(NAME)).strip()
    yield from tape.need(">")
    tape.call(name)
    tape.argue("{")
    separator = ""
    while True:
        yield from tape.skip_space()
        if (yield from tape.take("</function>")):
            break
        if not (yield from tape.take("<parameter=")):
            if (yield from tape.peek()) == "":
                raise NotACall
            break
        parameter = (yield from tape.run(NAME)).strip()
        yield from tape.need(">")
        text = yield from tape.until("</parameter>")
        yield from tape.need("</parameter>")
        # The templates write each value on lines of its own.
        text = text.removeprefix("\n").removesuffix("\n")
        written = json_of_text(text, tools[name], parameter)
        tape.argue(f"{separator}{json.dumps(parameter, ensure_ascii=False)}: {written}")
        separator = ", "
    tape.argue("}")
    tape.end()
