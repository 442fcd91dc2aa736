"""Calls that are JSON objects: `{"name": …, "arguments": {…}}`, their keys in any order.

The text of the arguments leaves as it stands and as it comes, once the name is known.
"""

from ganglion.text.tools.cursor import Cursor, NotACall, Reading
from ganglion.text.tools.json_text import decoded, string, value

NAME_KEYS = frozenset({"name", "function"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
# An object with any other key is an answer in JSON, and need not be held until its end.
OTHER_KEYS = frozenset({"type", "id"})


def json_call(tape: Cursor, *closing: str) -> Reading[None]:
    """Read one call; arguments that are no JSON go on to the first of the closing markers."""
    yield from tape.need("{")
    early: str | None = None
    """Arguments that came before the name."""
    is_named = is_argued = False
    while True:
        key = yield from _key(tape)
        if key in NAME_KEYS and not is_named:
            if (yield from tape.skip_space()) != '"':
                raise NotACall
            tape.call((yield from string(tape)))
            is_named = True
            tape.argue(early or "")
        elif key in ARGUMENT_KEYS and not is_argued:
            is_argued = True
            if is_named:
                yield from arguments(tape, *closing)
            else:
                early = yield from _early(tape)
        elif key in NAME_KEYS | ARGUMENT_KEYS | OTHER_KEYS:
            yield from value(tape)
        else:
            raise NotACall
        char = yield from tape.skip_space()
        if char not in ",}" or not char:
            raise NotACall
        tape.advance()
        if char == "}":
            break
    if not is_named:
        raise NotACall
    if not is_argued:
        tape.argue("{}")
    tape.end()


def json_calls(tape: Cursor, *closing: str) -> Reading[None]:
    """Read one call, or a list of them."""
    if not (yield from tape.take("[")):
        yield from json_call(tape, *closing)
        return
    yield from json_list(tape, *closing)


def json_list(tape: Cursor, *closing: str) -> Reading[None]:
    """Read the calls of a list whose bracket was read."""
    while True:
        yield from tape.skip_space()
        yield from json_call(tape, *closing)
        if (yield from tape.skip_space()) != ",":
            break
        tape.advance()
    yield from tape.need("]")


def arguments(tape: Cursor, *closing: str) -> Reading[None]:
    """Let a value out as the call's arguments: an object as it stands, a string as what it reads."""
    char = yield from tape.skip_space()
    if char == "n" and (yield from tape.take("null")):
        tape.argue("{}")
        return
    try:
        if char == '"':
            yield from decoded(tape)
        else:
            yield from tape.passing(value(tape))
    except NotACall:
        yield from tape.passing(_rest(tape, *closing))


def ended(tape: Cursor, reading: Reading[None]) -> Reading[None]:
    """Read calls, and end one that breaks off after its name."""
    try:
        yield from reading
    except NotACall:
        if not tape.is_calling:
            raise
        tape.end()


def _early(tape: Cursor) -> Reading[str]:
    if (yield from tape.skip_space()) == '"':
        return (yield from string(tape))
    return (yield from tape.keeping(value(tape)))


def _rest(tape: Cursor, *closing: str) -> Reading[None]:
    yield from tape.until(*closing)


def _key(tape: Cursor) -> Reading[str]:
    yield from tape.skip_space()
    key = yield from string(tape)
    if (yield from tape.skip_space()) != ":":
        raise NotACall
    tape.advance()
    return key
