"""`<tool_call>` blocks: JSON as Hermes and Qwen write it, or Qwen's XML with a tag for each parameter."""

import json
import re
from collections.abc import Mapping

from ganglion.core.request import Tool
from ganglion.text.tools.json_calls import ended, json_calls
from ganglion.text.tools.tape import Broken, Reading, Tape
from ganglion.text.tools.typed import typed

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
FUNCTION = "<function="
NAME = re.compile(r"[^<>\n]*")


def read_tagged(tape: Tape, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
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


def _functions(tape: Tape, tools: Mapping[str, Tool]) -> Reading[None]:
    while True:
        yield from _function(tape, tools)
        yield from tape.skip_space()
        if not (yield from tape.take(FUNCTION)):
            return


def _function(tape: Tape, tools: Mapping[str, Tool]) -> Reading[None]:
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
                raise Broken
            break
        parameter = (yield from tape.run(NAME)).strip()
        yield from tape.need(">")
        text = yield from tape.until("</parameter>")
        yield from tape.need("</parameter>")
        # The templates write each value on lines of its own.
        text = text.removeprefix("\n").removesuffix("\n")
        written = typed(text, tools[name], parameter)
        tape.argue(f"{separator}{json.dumps(parameter, ensure_ascii=False)}: {written}")
        separator = ", "
    tape.argue("}")
    tape.end()
