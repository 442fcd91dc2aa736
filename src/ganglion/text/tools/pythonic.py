"""Calls that are written as Python: `[weather(city="Oslo", days=2), now()]`, read by a parser of our own.

A call leaves when it is complete, so that brackets which turn out to be prose go back to the text.
"""

import json
import re

from ganglion.text.tools.json_text import SCALAR
from ganglion.text.tools.tape import Broken, Reading, Tape

NAME = re.compile(r"[\w.-]*")
WORD = re.compile(r"[-+.\w]*")
CONSTANTS = {"True": "true", "False": "false", "None": "null"}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}
ESCAPES |= {char: char for char in "\\'\"/"}
HEXADECIMAL = {"x": 2, "u": 4, "U": 8}
MAX_CODE = 0x10FFFF
# Readers are nested generators, and each level costs every wait below it.
MAX_DEPTH = 32


def python_calls(tape: Tape, *names: str) -> Reading[None]:
    """Read calls between commas, semicolons and line ends; the prefixes `names` before a call are dropped."""
    while True:
        yield from _call(tape, names)
        char = yield from tape.skip_space()
        if char and char in ",;":
            tape.advance()
            char = yield from tape.skip_space()
        if not (char.isalpha() or char == "_"):
            return


def _call(tape: Tape, prefixes: tuple[str, ...]) -> Reading[None]:
    name = yield from tape.run(NAME)
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    yield from tape.need("(")
    tape.check(name)
    written = yield from _members(tape, ")", "=", 0)
    tape.call(name)
    tape.argue("{" + written + "}")
    tape.end()


def _members(tape: Tape, closer: str, separator: str, depth: int) -> Reading[str]:
    """Read `key separator value` pairs up to the closer, as the inside of a JSON object."""
    found: list[str] = []
    while (yield from tape.skip_space()) != closer:
        if separator == "=":
            key = yield from tape.run(NAME)
            if not key:
                raise Broken
        else:
            key = yield from _string(tape)
        yield from tape.skip_space()
        yield from tape.need(separator)
        found.append(f"{json.dumps(key, ensure_ascii=False)}: {(yield from _value(tape, depth + 1))}")
        if not (yield from _is_more(tape)):
            break
    yield from tape.need(closer)
    return ", ".join(found)


def _value(tape: Tape, depth: int) -> Reading[str]:
    if depth > MAX_DEPTH:
        raise Broken
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
        raise Broken
    return written


def _items(tape: Tape, closer: str, depth: int) -> Reading[str]:
    found: list[str] = []
    while (yield from tape.skip_space()) != closer:
        found.append((yield from _value(tape, depth + 1)))
        if not (yield from _is_more(tape)):
            break
    yield from tape.need(closer)
    return "[" + ", ".join(found) + "]"


def _is_more(tape: Tape) -> Reading[bool]:
    if (yield from tape.skip_space()) != ",":
        return False
    tape.advance()
    yield from tape.skip_space()
    return True


def _string(tape: Tape) -> Reading[str]:
    quote = yield from tape.peek()
    if not quote or quote not in "'\"":
        raise Broken
    tape.advance()
    plain = re.compile(rf"[^{quote}\\]*")
    found: list[str] = []
    while True:
        found.append((yield from tape.run(plain)))
        if (yield from tape.take(quote)):
            return "".join(found)
        yield from tape.need("\\")
        found.append((yield from _escape(tape)))


def _escape(tape: Tape) -> Reading[str]:
    char = yield from tape.peek()
    if not char:
        raise Broken
    tape.advance()
    if char in ESCAPES:
        return ESCAPES[char]
    if char not in HEXADECIMAL:
        return "\\" + char
    digits = ""
    while len(digits) < HEXADECIMAL[char]:
        digit = yield from tape.peek()
        if not digit or digit not in "0123456789abcdefABCDEF":
            raise Broken
        tape.advance()
        digits += digit
    code = int(digits, 16)
    return "\ufffd" if 0xD800 <= code < 0xE000 or code > MAX_CODE else chr(code)
