"""DeepSeek's calls: a section of calls, each a name and JSON, in a fence (V3, R1) or without one (V3.1)."""

import re
from collections.abc import Mapping

from ganglion.core.request import Tool
from ganglion.text.tools.cursor import Cursor, Reading
from ganglion.text.tools.json_calls import arguments

BAR = "\uff5c"  # a full-width one
SECTION = f"<{BAR}tool▁calls▁begin{BAR}>"
SECTION_END = f"<{BAR}tool▁calls▁end{BAR}>"
CALL = f"<{BAR}tool▁call▁begin{BAR}>"
CALL_END = f"<{BAR}tool▁call▁end{BAR}>"
SEPARATOR = f"<{BAR}tool▁sep{BAR}>"
FENCE = "```"

NAME = re.compile(r"[^<\n{]*")


def read_deepseek(tape: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read the section's calls; a call whose section was not opened is read too."""
    del tools
    if opening == SECTION:
        yield from tape.skip_space()
        yield from tape.need(CALL)
    while True:
        yield from _call(tape)
        yield from tape.skip_space()
        if not (yield from tape.take(CALL)):
            yield from tape.take(SECTION_END)
            return


def _call(tape: Cursor) -> Reading[None]:
    name = (yield from tape.run(NAME)).strip()
    yield from tape.need(SEPARATOR)
    is_fenced = (yield from tape.skip_space()) != "{"
    if is_fenced:
        name = (yield from tape.run(NAME)).strip()
        yield from tape.skip_space()
        yield from tape.need(FENCE + "json")
    tape.call(name)
    yield from arguments(tape, CALL_END, FENCE)
    if is_fenced:
        yield from tape.skip_space()
        yield from tape.take(FENCE)
    yield from tape.skip_space()
    yield from tape.take(CALL_END)
    tape.end()
