"""Gemma's calls: `<|tool_call>call:name{key:value,…}<tool_call|>`, strings between marks of their own."""

import json
import re
from collections.abc import Mapping

from ganglion.core.request import Tool
from ganglion.text.tools.cursor import Cursor, NotACall, Reading
from ganglion.text.tools.json_text import MAX_DEPTH, PYTHON_CONSTANTS, SCALAR, string

OPENING = "<|tool_call>"
CLOSING = "<tool_call|>"
QUOTE = '<|"|>'
FUNCTION_OPENING = "<start_function_call>"
FUNCTION_CLOSING = "<end_function_call>"
FUNCTION_QUOTE = "<escape>"

NAME = re.compile(r"[^{}\n<]*")
_KEY = re.compile(r"[^:{}\[\],<\"\s]*")
_WORD = re.compile(r"[^,\]}\n<]*")


def read_gemma(cursor: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read one call, its arguments leaving one by one."""
    del tools
    quote, closing = (QUOTE, CLOSING) if opening == OPENING else (FUNCTION_QUOTE, FUNCTION_CLOSING)
    yield from cursor.skip_space()
    yield from cursor.need("call:")
    name = (yield from cursor.run(NAME)).strip()
    yield from cursor.need("{")
    cursor.call(name)
    cursor.emit_arguments("{")
    separator = ""
    while (yield from cursor.skip_space()) != "}":
        cursor.emit_arguments(separator + (yield from _member(cursor, quote, 0)))
        separator = ", "
        if (yield from cursor.skip_space()) != ",":
            break
        cursor.advance()
    yield from cursor.need("}")
    cursor.emit_arguments("}")
    cursor.end()
    yield from cursor.skip_space()
    yield from cursor.take(closing)


def _member(cursor: Cursor, quote: str, depth: int) -> Reading[str]:
    yield from cursor.skip_space()
    key = yield from _string(cursor, quote)
    if key is None:
        key = yield from cursor.run(_KEY)
    if (yield from cursor.skip_space()) != ":" or not key:
        raise NotACall
    cursor.advance()
    return f"{json.dumps(key, ensure_ascii=False)}: {(yield from _value(cursor, quote, depth + 1))}"


def _value(cursor: Cursor, quote: str, depth: int) -> Reading[str]:
    if depth > MAX_DEPTH:
        raise NotACall
    char = yield from cursor.skip_space()
    if char == "{":
        return (yield from _nested(cursor, quote, "}", depth))
    if char == "[":
        return (yield from _nested(cursor, quote, "]", depth))
    text = yield from _string(cursor, quote)
    if text is not None:
        return json.dumps(text, ensure_ascii=False)
    word = (yield from cursor.run(_WORD)).strip()
    if not word and (yield from cursor.peek()) in ("", "<"):
        raise NotACall  # cut before the value, or inside its mark
    written = PYTHON_CONSTANTS.get(word, word)
    # A word without marks is a string whose marks were forgotten.
    return written if SCALAR.fullmatch(written) else json.dumps(word, ensure_ascii=False)


def _nested(cursor: Cursor, quote: str, closer: str, depth: int) -> Reading[str]:
    cursor.advance()
    found: list[str] = []
    while (yield from cursor.skip_space()) != closer:
        if closer == "}":
            found.append((yield from _member(cursor, quote, depth)))
        else:
            found.append((yield from _value(cursor, quote, depth + 1)))
        if (yield from cursor.skip_space()) != ",":
            break
        cursor.advance()
    yield from cursor.need(closer)
    inside = ", ".join(found)
    return "{" + inside + "}" if closer == "}" else "[" + inside + "]"


def _string(cursor: Cursor, quote: str) -> Reading[str | None]:
    """A string between the family's own marks or plain quotes, None where neither is next."""
    if (yield from cursor.take(quote)):
        text = yield from cursor.until(quote)
        yield from cursor.need(quote)
        return text
    if (yield from cursor.peek()) == '"':
        return (yield from string(cursor))
    return None
