"""Llama's and Mistral's calls, and Gemma's fenced code: JSON or Python behind a marker, or behind none."""

import re
from collections.abc import Mapping

from ganglion.core.request import Tool
from ganglion.text.tools.json_calls import arguments, ended, json_call, json_calls, json_list
from ganglion.text.tools.pythonic import python_calls
from ganglion.text.tools.tape import Broken, Reading, Tape

PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
TOOL_CODE = "```tool_code"
FENCE = "```"

# A name stands on one line and holds none of the brackets that may follow it.
NAME = re.compile(r"[^\[\]{}\n]*")


def read_llama(tape: Tape, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read `{"name": …, "parameters": …}`, several between semicolons, or `[f(a=1)]`."""
    del tools, opening
    if (yield from tape.skip_space()) == "[":
        tape.advance()
        if (yield from tape.skip_space()) == "{":
            yield from ended(tape, json_list(tape))
            return
        yield from python_calls(tape)
        yield from tape.need("]")
        return
    while True:
        yield from ended(tape, json_call(tape))
        char = yield from tape.skip_space()
        if char and char in ";,":
            tape.advance()
            char = yield from tape.skip_space()
        if char != "{":
            return


def read_mistral(tape: Tape, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read a list of JSON calls, or a name and its arguments."""
    del tools, opening
    char = yield from tape.skip_space()
    if char and char in "[{":
        yield from ended(tape, json_calls(tape, TOOL_CALLS))
        return
    name = (yield from tape.run(NAME)).strip()
    if (yield from tape.take(CALL_ID)):
        yield from tape.run(NAME)
    if not (yield from tape.take(ARGS)) and (yield from tape.peek()) != "{":
        raise Broken
    tape.call(name)
    yield from arguments(tape, TOOL_CALLS)
    tape.end()


def read_tool_code(tape: Tape, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read Python calls up to the fence's end, in a list or not."""
    del tools, opening
    is_list = (yield from tape.skip_space()) == "["
    if is_list:
        tape.advance()
        yield from tape.skip_space()
    yield from python_calls(tape, "default_api.")
    if is_list:
        yield from tape.need("]")
        yield from tape.skip_space()
    yield from tape.need(FENCE)
