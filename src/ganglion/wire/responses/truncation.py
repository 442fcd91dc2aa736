"""`truncation: auto`: which turns a prompt loses first when it does not fit."""

from dataclasses import replace

from ganglion.core.request import ChatPrompt, Message

_KEPT = ("system", "developer")


def shortened(prompt: ChatPrompt, most: float | None = None) -> ChatPrompt | None:
    """The prompt without its oldest turn, and without the next ones until it has at most `most` characters.

    None when only the last turn is left. A turn begins with a user's message and reaches to the next one, so
    that no answer of a tool is left without its call. What systems and developers said stays.
    """
    messages = prompt.messages
    following: int | None = None
    left = characters_of(prompt)
    has_user = False
    for place, message in enumerate(messages):
        if message.role == "user":
            if has_user:
                following = place
                if most is None or left <= most:
                    break
            has_user = True
        if message.role not in _KEPT:
            left -= _length(message)
    if following is None:
        return None
    kept = tuple(message for message in messages[:following] if message.role in _KEPT)
    return replace(prompt, messages=(*kept, *messages[following:]))


def characters_of(prompt: ChatPrompt) -> int:
    """How much text a prompt's messages hold, and one character for what stands around them."""
    return 1 + sum(map(_length, prompt.messages))


def _length(message: Message) -> int:
    called = sum(len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + called
