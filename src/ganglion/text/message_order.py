"""Reorders messages for strict templates: one system message first, then user and assistant in turns.

Agents send several system messages, also in the middle, and several user messages in a row. Most templates
take them as they come; some refuse, and some refuse system messages altogether. Only for those is anything
moved, and nothing is ever left out.
"""

from collections.abc import Iterator
from dataclasses import replace

from ganglion.core.attachments import joined_content
from ganglion.core.request import Message

_SYSTEM = ("system", "developer")
_BETWEEN = "\n\n"


def stricter_orders(messages: tuple[Message, ...]) -> Iterator[tuple[Message, ...]]:
    """Other orders of the same messages, each stricter than the one before; none that is no other."""
    ordered = _ordered(messages)
    if ordered != messages:
        yield ordered
    if len(ordered) > 1 and ordered[0].role == "system" and ordered[1].role == "user":
        system, user = ordered[:2]
        yield (_with_content(user, system, user), *ordered[2:])


def _ordered(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The leading system messages as one, later ones as the user's, and the user's turns joined."""
    leading = 0
    while leading < len(messages) and messages[leading].role in _SYSTEM:
        leading += 1
    told = [_with_content(Message("system", ""), *messages[:leading])] if leading else []
    for message in messages[leading:]:
        turn = replace(message, role="user") if message.role in _SYSTEM else message
        if turn.role == "user" and told and told[-1].role == "user":
            told[-1] = _with_content(told[-1], told[-1], turn)
        else:
            told.append(turn)
    return tuple(told)


def _with_content(message: Message, *joined: Message) -> Message:
    content, attachments = joined_content(joined, _BETWEEN)
    return replace(message, content=content, attachments=attachments)
