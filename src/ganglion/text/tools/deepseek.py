"""DeepSeek's calls: a section of calls, each a name and JSON, in a fence (V3, R1) or without one (V3.1)."""

import re
from collections.abc import Mapping

from ganglion.core.request import Tool
from ganglion.text.tools.cursor import Cursor, Reading
from ganglion.text.tools.json_calls import arguments

_BAR = "\uff5c"  # a full-width one
SECTION = f"<{_BAR}tool▁calls▁begin{_BAR}>"
SECTION_END = f"<{_BAR}tool▁calls▁end{_BAR}>"
CALL = f"<{_BAR}tool▁call▁begin{_BAR}>"
CALL_END = f"<{_BAR}tool▁call▁end{_BAR}>"
SEPARATOR = f"<{_BAR}tool▁sep{_BAR}>"
_FENCE = "```"

NAME = re.compile(r"[^<\n{]*")


def read_deepseek(cursor: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read the section's calls; a call whose section was not opened is read too."""
    del tools
    if opening == SECTION:
        yield from cursor.skip_space()
        yield from cursor.need(CALL)
    while True:
        yield from _call(cursor)
        yield from cursor.skip_space()
        if not (yield from cursor.take(CALL)):
            yield from cursor.take(SECTION_END)
            return


def _call(cursor: Cursor) -> Reading[None]:
    name = (yield from cursor.run(NAME)).strip()
    yield from cursor.need(SEPARATOR)
    is_fenced = (yield from cursor.skip_space()) != "{"
    if is_fenced:
        name = (yield from cursor.run(NAME)).strip()
        yield from cursor.skip_space()
        yield from cursor.need(_FENCE + "json")
    cursor.call(name)
    yield from arguments(cursor, CALL_END, _FENCE)
    if is_fenced:
        yield from cursor.skip_space()
        yield from cursor.take(_FENCE)
    yield from cursor.skip_space()
    yield from cursor.take(CALL_END)
    cursor.end()
