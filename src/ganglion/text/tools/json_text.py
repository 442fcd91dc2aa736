"""Reads JSON from a cursor: whole values as they are written, strings decoded."""

import re

from ganglion.text.tools.cursor import Cursor, NotACall, Reading

_PLAIN = re.compile(r'[^"\\]*')
WORD = re.compile(r"[-+.\w]*")
_HEX = frozenset("0123456789abcdefABCDEF")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
SCALAR = re.compile(f"true|false|null|{NUMBER.pattern}")
PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
# Readers are nested generators, and each level costs every wait below it.
MAX_DEPTH = 32
"""Levels of lists and objects in arguments that are not JSON."""
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_CLOSERS = {"{": "}", "[": "]"}


def value(cursor: Cursor) -> Reading[None]:
    """Consume one JSON value, however deep; raises NotACall at the first character that is not JSON.

    Control characters inside a string are let through: models write them, and readers that care can tell.
    """
    closers: list[str] = []
    while True:
        char = yield from cursor.skip_space()
        if char in _CLOSERS:
            closers.append(_CLOSERS[char])
            cursor.advance()
            if (yield from cursor.skip_space()) != closers[-1]:
                if char == "{":
                    yield from _key(cursor)
                continue
        elif char == '"':
            yield from _string(cursor)
        elif not SCALAR.fullmatch((yield from cursor.run(WORD))):
            raise NotACall
        while closers:
            char = yield from cursor.skip_space()
            if char == closers[-1]:
                cursor.advance()
                closers.pop()
            elif char == ",":
                cursor.advance()
                if closers[-1] == "}":
                    yield from cursor.skip_space()
                    yield from _key(cursor)
                break
            else:
                raise NotACall
        else:
            return


def string(cursor: Cursor) -> Reading[str]:
    """Consume a JSON string and return what it reads."""
    found: list[str] = []
    yield from decoded(cursor, found)
    return "".join(found)


def decoded(cursor: Cursor, found: list[str] | None = None) -> Reading[None]:
    """Consume a JSON string; what it reads goes into `found`, or out as arguments while it comes."""
    yield from cursor.need('"')
    while True:
        char = yield from cursor.peek()
        if not char:
            raise NotACall
        if char == '"':
            cursor.advance()
            return
        if char == "\\":
            cursor.advance()
            text = yield from _read_escape(cursor)
        else:
            text = cursor.at_once(_PLAIN)
        if found is None:
            cursor.emit_arguments(text)
        else:
            found.append(text)


def _read_escape(cursor: Cursor) -> Reading[str]:
    # Models forget to double the backslash of `\\d`; it is plain what was meant.
    char = yield from cursor.peek()
    return (yield from _escape(cursor)) if char in _ESCAPES or char == "u" else "\\"


def _escape(cursor: Cursor) -> Reading[str]:
    char = yield from cursor.peek()
    if char in _ESCAPES:
        cursor.advance()
        return _ESCAPES[char]
    if char != "u":
        raise NotACall
    cursor.advance()
    unit = yield from _unit(cursor)
    if 0xD800 <= unit < 0xDC00 and (yield from cursor.take("\\u")):
        low = yield from _unit(cursor)
        if 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
        return "\ufffd" + _lone(low)
    return _lone(unit)


def _unit(cursor: Cursor) -> Reading[int]:
    digits = ""
    while len(digits) < 4:
        char = yield from cursor.peek()
        if char not in _HEX:
            raise NotACall
        cursor.advance()
        digits += char
    return int(digits, 16)


def _lone(unit: int) -> str:
    # Half a surrogate pair cannot be sent in UTF-8.
    return "\ufffd" if 0xD800 <= unit < 0xE000 else chr(unit)


def _key(cursor: Cursor) -> Reading[None]:
    yield from _string(cursor)
    if (yield from cursor.skip_space()) != ":":
        raise NotACall
    cursor.advance()


def _string(cursor: Cursor) -> Reading[None]:
    yield from cursor.need('"')
    while True:
        yield from cursor.run(_PLAIN)
        if (yield from cursor.take('"')):
            return
        yield from cursor.need("\\")
        yield from _escape(cursor)
