"""JSON on a tape: values as they stand, strings as they read."""

import re

from ganglion.text.tools.cursor import Cursor, NotACall, Reading

PLAIN = re.compile(r'[^"\\]*')
WORD = re.compile(r"[-+.\w]*")
HEX = frozenset("0123456789abcdefABCDEF")
SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
CLOSERS = {"{": "}", "[": "]"}


def value(tape: Cursor) -> Reading[None]:
    """Consume one JSON value, however deep; raises Broken at the first character that JSON has not there.

    Control characters inside a string are let through: models write them, and readers that care can tell.
    """
    closers: list[str] = []
    while True:
        char = yield from tape.skip_space()
        if char in CLOSERS:
            closers.append(CLOSERS[char])
            tape.advance()
            if (yield from tape.skip_space()) != closers[-1]:
                if char == "{":
                    yield from _key(tape)
                continue
        elif char == '"':
            yield from _string(tape)
        elif not SCALAR.fullmatch((yield from tape.run(WORD))):
            raise NotACall
        while closers:
            char = yield from tape.skip_space()
            if char == closers[-1]:
                tape.advance()
                closers.pop()
            elif char == ",":
                tape.advance()
                if closers[-1] == "}":
                    yield from tape.skip_space()
                    yield from _key(tape)
                break
            else:
                raise NotACall
        else:
            return


def string(tape: Cursor) -> Reading[str]:
    """Consume a JSON string and return what it reads."""
    found: list[str] = []
    yield from decoded(tape, found)
    return "".join(found)


def decoded(tape: Cursor, found: list[str] | None = None) -> Reading[None]:
    """Consume a JSON string; what it reads goes into `found`, or out as arguments while it comes."""
    yield from tape.need('"')
    while True:
        char = yield from tape.peek()
        if not char:
            raise NotACall
        if char == '"':
            tape.advance()
            return
        if char == "\\":
            tape.advance()
            text = yield from _read_escape(tape)
        else:
            text = tape.at_once(PLAIN)
        if found is None:
            tape.argue(text)
        else:
            found.append(text)


def _read_escape(tape: Cursor) -> Reading[str]:
    # Models forget to double the backslash of `\\d`; it is plain what was meant.
    char = yield from tape.peek()
    return (yield from _escape(tape)) if char in ESCAPES or char == "u" else "\\"


def _escape(tape: Cursor) -> Reading[str]:
    char = yield from tape.peek()
    if char in ESCAPES:
        tape.advance()
        return ESCAPES[char]
    if char != "u":
        raise NotACall
    tape.advance()
    unit = yield from _unit(tape)
    if 0xD800 <= unit < 0xDC00 and (yield from tape.take("\\u")):
        low = yield from _unit(tape)
        if 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
        return "\ufffd" + _lone(low)
    return _lone(unit)


def _unit(tape: Cursor) -> Reading[int]:
    digits = ""
    while len(digits) < 4:
        char = yield from tape.peek()
        if char not in HEX:
            raise NotACall
        tape.advance()
        digits += char
    return int(digits, 16)


def _lone(unit: int) -> str:
    # Half a surrogate pair cannot be sent in UTF-8.
    return "\ufffd" if 0xD800 <= unit < 0xE000 else chr(unit)


def _key(tape: Cursor) -> Reading[None]:
    yield from _string(tape)
    if (yield from tape.skip_space()) != ":":
        raise NotACall
    tape.advance()


def _string(tape: Cursor) -> Reading[None]:
    yield from tape.need('"')
    while True:
        yield from tape.run(PLAIN)
        if (yield from tape.take('"')):
            return
        yield from tape.need("\\")
        yield from _escape(tape)
