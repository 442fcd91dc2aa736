"""Llama's and Mistral's calls, and Gemma's fenced code: JSON or Python behind a marker, or behind none."""

import json
import re
from collections.abc import Mapping

from ganglion.core.request import Tool
from ganglion.text.tools.cursor import Cursor, NotACall, Reading
from ganglion.text.tools.json_calls import arguments, ended, json_call, json_calls, json_list
from ganglion.text.tools.json_text import MAX_DEPTH, PYTHON_CONSTANTS, SCALAR, WORD

# A call leaves when it is complete, so that brackets which turn out to be prose go back to the text.

_PYTHON_NAME = re.compile(r"[\w.-]*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}
_ESCAPES |= {char: char for char in "\\'\"/"}
_HEXADECIMAL = {"x": 2, "u": 4, "U": 8}
_MAX_CODE = 0x10FFFF


def _python_calls(cursor: Cursor, *names: str) -> Reading[None]:
    """Read calls between commas, semicolons and line ends; the prefixes `names` before a call are dropped."""
    while True:
        yield from _call(cursor, names)
        char = yield from cursor.skip_space()
        if char and char in ",;":
            cursor.advance()
            char = yield from cursor.skip_space()
        if not (char.isalpha() or char == "_"):
            return


def _call(cursor: Cursor, prefixes: tuple[str, ...]) -> Reading[None]:
    name = yield from cursor.run(_PYTHON_NAME)
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    yield from cursor.need("(")
    cursor.check(name)
    written = yield from _members(cursor, ")", "=", 0)
    cursor.call(name)
    cursor.emit_arguments("{" + written + "}")
    cursor.end()


def _members(cursor: Cursor, closer: str, separator: str, depth: int) -> Reading[str]:
    """Read `key separator value` pairs up to the closer, as the inside of a JSON object."""
    found: list[str] = []
    while (yield from cursor.skip_space()) != closer:
        if separator == "=":
            key = yield from cursor.run(_PYTHON_NAME)
            if not key:
                raise NotACall
        else:
            key = yield from _string(cursor)
        yield from cursor.skip_space()
        yield from cursor.need(separator)
        found.append(f"{json.dumps(key, ensure_ascii=False)}: {(yield from _value(cursor, depth + 1))}")
        if not (yield from _is_more(cursor)):
            break
    yield from cursor.need(closer)
    return ", ".join(found)


def _value(cursor: Cursor, depth: int) -> Reading[str]:
    if depth > MAX_DEPTH:
        raise NotACall
    char = yield from cursor.skip_space()
    if char and char in "'\"":
        return json.dumps((yield from _string(cursor)), ensure_ascii=False)
    if char == "{":
        cursor.advance()
        return "{" + (yield from _members(cursor, "}", ":", depth)) + "}"
    if char and char in "[(":
        cursor.advance()
        return (yield from _items(cursor, "]" if char == "[" else ")", depth))
    word = yield from cursor.run(WORD)
    written = PYTHON_CONSTANTS.get(word, word)
    if not SCALAR.fullmatch(written):
        raise NotACall
    return written


def _items(cursor: Cursor, closer: str, depth: int) -> Reading[str]:
    found: list[str] = []
    while (yield from cursor.skip_space()) != closer:
        found.append((yield from _value(cursor, depth + 1)))
        if not (yield from _is_more(cursor)):
            break
    yield from cursor.need(closer)
    return "[" + ", ".join(found) + "]"


def _is_more(cursor: Cursor) -> Reading[bool]:
    if (yield from cursor.skip_space()) != ",":
        return False
    cursor.advance()
    yield from cursor.skip_space()
    return True


def _string(cursor: Cursor) -> Reading[str]:
    quote = yield from cursor.peek()
    if not quote or quote not in "'\"":
        raise NotACall
    cursor.advance()
    plain = re.compile(rf"[^{quote}\\]*")
    found: list[str] = []
    while True:
        found.append((yield from cursor.run(plain)))
        if (yield from cursor.take(quote)):
            return "".join(found)
        yield from cursor.need("\\")
        found.append((yield from _escape(cursor)))


def _escape(cursor: Cursor) -> Reading[str]:
    char = yield from cursor.peek()
    if not char:
        raise NotACall
    cursor.advance()
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char not in _HEXADECIMAL:
        return "\\" + char
    digits = ""
    while len(digits) < _HEXADECIMAL[char]:
        digit = yield from cursor.peek()
        if not digit or digit not in "0123456789abcdefABCDEF":
            raise NotACall
        cursor.advance()
        digits += digit
    code = int(digits, 16)
    return "\ufffd" if 0xD800 <= code < 0xE000 or code > _MAX_CODE else chr(code)


PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
TOOL_CODE = "```tool_code"
_FENCE = "```"

# A name stands on one line and holds none of the brackets that may follow it.
NAME = re.compile(r"[^\[\]{}\n]*")


def read_llama(cursor: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read `{"name": …, "parameters": …}`, several between semicolons, or `[f(a=1)]`."""
    del tools, opening
    if (yield from cursor.skip_space()) == "[":
        cursor.advance()
        if (yield from cursor.skip_space()) == "{":
            yield from ended(cursor, json_list(cursor))
            return
        yield from _python_calls(cursor)
        yield from cursor.need("]")
        return
    while True:
        yield from ended(cursor, json_call(cursor))
        char = yield from cursor.skip_space()
        if char and char in ";,":
            cursor.advance()
            char = yield from cursor.skip_space()
        if char != "{":
            return


def read_mistral(cursor: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read a list of JSON calls, or a name and its arguments."""
    del tools, opening
    char = yield from cursor.skip_space()
    if char and char in "[{":
        yield from ended(cursor, json_calls(cursor, TOOL_CALLS))
        return
    name = (yield from cursor.run(NAME)).strip()
    if (yield from cursor.take(CALL_ID)):
        yield from cursor.run(NAME)
    if not (yield from cursor.take(ARGS)) and (yield from cursor.peek()) != "{":
        raise NotACall
    cursor.call(name)
    yield from arguments(cursor, TOOL_CALLS)
    cursor.end()


def read_tool_code(cursor: Cursor, tools: Mapping[str, Tool], opening: str) -> Reading[None]:
    """Read Python calls up to the fence's end, in a list or not."""
    del tools, opening
    is_list = (yield from cursor.skip_space()) == "["
    if is_list:
        cursor.advance()
        yield from cursor.skip_space()
    yield from _python_calls(cursor, "default_api.")
    if is_list:
        yield from cursor.need("]")
        yield from cursor.skip_space()
    yield from cursor.need(_FENCE)
