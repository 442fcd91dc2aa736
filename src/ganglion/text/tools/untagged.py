"""Llama's and Mistral's calls, and Gemma's fenced code: JSON or Python behind a marker, or behind none."""

import json
import re
from collections.abc import Mapping

from ganglion.core.request import Tool
from ganglion.text.tools.cursor import Cursor, NotACall, Reading
from ganglion.text.tools.json_calls import arguments, ended, json_call, json_calls, json_list
from ganglion.text.tools.json_text import SCALAR

# A call leaves when it is complete, so that brackets which turn out to be prose go back to the text.

PYTHON_NAME = re.compile(r"[\w.-]*")
WORD = re.compile(r"[-+.\w]*")
CONSTANTS = {"True": "true", "False": "false", "None": "null"}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}
ESCAPES |= {char: char for char in "\\'\"/"}
HEXADECIMAL = {"x": 2, "u": 4, "U": 8}
MAX_CODE = 0x10FFFF
# Readers are nested generators, and each level costs every wait below it.
MAX_DEPTH = 32


def python_calls(tape: Cursor, *names: str) -> Reading[None]:
    """Read calls between commas, semicolons and line ends; the prefixes `names` before a call are dropped."""
    while True:
        yield from _call(tape, names)
        char = yield from tape.skip_space()
        if char and char in ",;":
            tape.advance()
            char = yield from tape.skip_space()
        if not (char.isalpha() or char == "_"):
            return


def _call(tape: Cursor, prefixes: tuple[str, ...]) -> Reading[None]:
    name = yield from tape.run(PYTHON_NAME)
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    yield from tape.need("(")
    tape.check(name)
    written = yield from _members(tape, ")", "=", 0)
    tape.call(name)
    tape.argue("{" + written + "}")
    tape.end()


def _members(tape: Cursor, closer: str, separator: str, depth: int) -> Reading[str]:
    """Read `key separator value` pairs up to the closer, as the inside of a JSON object."""
    found: list[str] = []
    while (yield from tape.skip_space()) != closer:
        if separator == "=":
            key = yield from tape.run(PYTHON_NAME)
            if not key:
                raise NotACall
        else:
            key = yield from _string(tape)
        yield from tape.skip_space()
        yield from tape.need(separator)
        found.append(f"{json.dumps(key, ensure_ascii=False)}: {(yield from _value(tape, depth + 1))}")
        if not (yield from _is_more(tape)):
            break
    yield from tape.need(closer)
    return ", ".join(found)


def _value(tape: Cursor, depth: int) -> Reading[str]:
    if depth > MAX_DEPTH:
        raise NotACall
    char = yield from tape.skip_space()
    if char and char in "'\"":
        return json.dumps((yield from _string(tape)), ensure_ascii=False)
    if char == "{":
        tape.advance()
        return "{" + (yield from _members(tape, "}", ":", depth)) + "}"
    if char and char in "[(":
        tape.advance()
        return (yield from _items(tape, "]" if char == "[" else ")", depth))
    word = yield from tape.run(WORD)
    written = CONSTANTS.get(word, word)
    if not SCALAR.fullmatch(written):
        raise NotACall
    return written


def _items(tape: Cursor, closer: str, depth: int) -> Reading[str]:
    found: list[str] = []
    while (yield from tape.skip_space()) != closer:
        found.append((yield from _value(tape, depth + 1)))
        if not (yield from _is_more(tape)):
            break
    yield from tape.need(closer)
    return "[" + ", ".join(found) + "]"


def _is_more(tape: Cursor) -> Reading[bool]:
    if (yield from tape.skip_space()) != ",":
        return False
    tape.advance()
    yield from tape.skip_space()
    return True


def _string(tape: Cursor) -> Reading[str]:
    quote = yield from tape.peek()
    if not quote or quote not in "'\"":
        raise NotACall
    tape.advance()
    plain = re.compile(rf"[^{quote}\\]*")
    found: list[str] = []
    while True:
        found.append((yield from tape.run(plain)))
        if (yield from tape.take(quote)):
            return "".join(found)
        yield from tape.need("\\")
        found.append((yield from _escape(tape)))


def _escape(tape: Cursor) -> Reading[str]:
    char = yield from tape.peek()
    if not char:
        raise NotACall
    tape.advance()
    if char in ESCAPES:
        return ESCAPES[char]
    if char not in HEXADECIMAL:
        return "\\" + char
    digits = ""
    while len(digits) < HEXADECIMAL[char]:
        digit = yield from tape.peek()
        if not digit or digit not in "0123456789abcdefABCDEF":
            raise NotACall
        tape.advance()
        digits += digit
    code = int(digits, 16)
    return "\ufffd" if 0xD800 <= code < 0xE000 or code > MAX_CODE else chr(code)


PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
TOOL_CODE = "```tool_code"
FENCE = "```"

# A name stands on one line and holds none of the brackets that may follow it.
NAME = re.compile(r"[^\[\]{}\n]*")


def read_llama(tape: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
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


def read_mistral(tape: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
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
        raise NotACall
    tape.call(name)
    yield from arguments(tape, TOOL_CALLS)
    tape.end()


def read_tool_code(tape: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
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
