"""Gemma's calls: `<|tool_call>call:name{key:value,…}<tool_call|>`, strings between marks of their own."""

import json
import re
from collections.abc import Mapping

from ganglion.core.request import Tool
from ganglion.text.tools.cursor import Cursor, NotACall, Reading
from ganglion.text.tools.json_text import SCALAR, string

OPENING = "<|tool_call>"
CLOSING = "<tool_call|>"
QUOTE = '<|"|>'
FUNCTION_OPENING = "<start_function_call>"
FUNCTION_CLOSING = "<end_function_call>"
FUNCTION_QUOTE = "<escape>"

NAME = re.compile(r"[^{}\n<]*")
KEY = re.compile(r"[^:{}\[\],<\"\s]*")
WORD = re.compile(r"[^,\]}\n<]*")
CONSTANTS = {"True": "true", "False": "false", "None": "null"}
MAX_DEPTH = 32


def read_gemma(tape: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read one call, its arguments leaving one by one."""
    del tools
    quote, closing = (QUOTE, CLOSING) if opening == OPENING else (FUNCTION_QUOTE, FUNCTION_CLOSING)
    yield from tape.skip_space()
    yield from tape.need("call:")
    name = (yield from tape.run(NAME)).strip()
    yield from tape.need("{")
    tape.call(name)
    tape.argue("{")
    separator = ""
    while (yield from tape.skip_space()) != "}":
        tape.argue(separator + (yield from _member(tape, quote, 0)))
        separator = ", "
        if (yield from tape.skip_space()) != ",":
            break
        tape.advance()
    yield from tape.need("}")
    tape.argue("}")
    tape.end()
    yield from tape.skip_space()
    yield from tape.take(closing)


def _member(tape: Cursor, quote: str, depth: int) -> Reading[str]:
    yield from tape.skip_space()
    key = yield from _string(tape, quote)
    if key is None:
        key = yield from tape.run(KEY)
    if (yield from tape.skip_space()) != ":" or not key:
        raise NotACall
    tape.advance()
    return f"{json.dumps(key, ensure_ascii=False)}: {(yield from _value(tape, quote, depth + 1))}"


def _value(tape: Cursor, quote: str, depth: int) -> Reading[str]:
    if depth > MAX_DEPTH:
        raise NotACall
    char = yield from tape.skip_space()
    if char == "{":
        return (yield from _nested(tape, quote, "}", depth))
    if char == "[":
        return (yield from _nested(tape, quote, "]", depth))
    text = yield from _string(tape, quote)
    if text is not None:
        return json.dumps(text, ensure_ascii=False)
    word = (yield from tape.run(WORD)).strip()
    if not word and (yield from tape.peek()) in ("", "<"):
        raise NotACall  # cut before the value, or inside its mark
    written = CONSTANTS.get(word, word)
    # A word without marks is a string whose marks were forgotten.
    return written if SCALAR.fullmatch(written) else json.dumps(word, ensure_ascii=False)


def _nested(tape: Cursor, quote: str, closer: str, depth: int) -> Reading[str]:
    tape.advance()
    found: list[str] = []
    while (yield from tape.skip_space()) != closer:
        if closer == "}":
            found.append((yield from _member(tape, quote, depth)))
        else:
            found.append((yield from _value(tape, quote, depth + 1)))
        if (yield from tape.skip_space()) != ",":
            break
        tape.advance()
    yield from tape.need(closer)
    inside = ", ".join(found)
    return "{" + inside + "}" if closer == "}" else "[" + inside + "]"


def _string(tape: Cursor, quote: str) -> Reading[str | None]:
    """What stands between the family's own marks or plain quotes, None where neither is next."""
    if (yield from tape.take(quote)):
        text = yield from tape.until(quote)
        yield from tape.need(quote)
        return text
    if (yield from tape.peek()) == '"':
        return (yield from string(tape))
    return None
