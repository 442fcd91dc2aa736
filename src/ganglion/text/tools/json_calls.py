"""Calls that are JSON objects: `{"name": …, "arguments": {…}}`, their keys in any order.

The text of the arguments leaves as it stands and as it comes, once the name is known.
"""

from ganglion.text.tools.cursor import Cursor, NotACall, Reading
from ganglion.text.tools.json_text import decoded, string, value

_NAME_KEYS = frozenset({"name", "function"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
# An object with any other key is an answer in JSON, and need not be held until its end.
_OTHER_KEYS = frozenset({"type", "id"})


def json_call(cursor: Cursor, *closing: str) -> Reading[None]:
    """Read one call; arguments that are no JSON go on to the first of the closing markers."""
    yield from cursor.need("{")
    early: str | None = None
    """Arguments that came before the name."""
    is_named = is_argued = False
    while True:
        key = yield from _key(cursor)
        if key in _NAME_KEYS and not is_named:
            if (yield from cursor.skip_space()) != '"':
                raise NotACall
            cursor.call((yield from string(cursor)))
            is_named = True
            cursor.emit_arguments(early or "")
        elif key in _ARGUMENT_KEYS and not is_argued:
            is_argued = True
            if is_named:
                yield from arguments(cursor, *closing)
            else:
                early = yield from _early(cursor)
        elif key in _NAME_KEYS | _ARGUMENT_KEYS | _OTHER_KEYS:
            yield from value(cursor)
        else:
            raise NotACall
        char = yield from cursor.skip_space()
        if char not in ",}" or not char:
            raise NotACall
        cursor.advance()
        if char == "}":
            break
    if not is_named:
        raise NotACall
    if not is_argued:
        cursor.emit_arguments("{}")
    cursor.end()


def json_calls(cursor: Cursor, *closing: str) -> Reading[None]:
    """Read one call, or a list of them."""
    if not (yield from cursor.take("[")):
        yield from json_call(cursor, *closing)
        return
    yield from json_list(cursor, *closing)


def json_list(cursor: Cursor, *closing: str) -> Reading[None]:
    """Read the calls of a list whose bracket was read."""
    while True:
        yield from cursor.skip_space()
        yield from json_call(cursor, *closing)
        if (yield from cursor.skip_space()) != ",":
            break
        cursor.advance()
    yield from cursor.need("]")


def arguments(cursor: Cursor, *closing: str) -> Reading[None]:
    """Let a value out as the call's arguments: an object as it stands, a string as what it reads."""
    char = yield from cursor.skip_space()
    if char == "n" and (yield from cursor.take("null")):
        cursor.emit_arguments("{}")
        return
    try:
        if char == '"':
            yield from decoded(cursor)
        else:
            yield from cursor.forwarding(value(cursor))
    except NotACall:
        yield from cursor.forwarding(_rest(cursor, *closing))


def ended(cursor: Cursor, reading: Reading[None]) -> Reading[None]:
    """Read calls, and end one that breaks off after its name."""
    try:
        yield from reading
    except NotACall:
        if not cursor.is_calling:
            raise
        cursor.end()


def _early(cursor: Cursor) -> Reading[str]:
    if (yield from cursor.skip_space()) == '"':
        return (yield from string(cursor))
    return (yield from cursor.capturing(value(cursor)))


def _rest(cursor: Cursor, *closing: str) -> Reading[None]:
    yield from cursor.until(*closing)


def _key(cursor: Cursor) -> Reading[str]:
    yield from cursor.skip_space()
    key = yield from string(cursor)
    if (yield from cursor.skip_space()) != ":":
        raise NotACall
    cursor.advance()
    return key
