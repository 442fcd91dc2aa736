"""`truncation: auto`: which turns a prompt loses first when it does not fit."""

from dataclasses import replace

from ganglion.core.request import ChatPrompt

_KEPT = ("system", "developer")


def shortened(prompt: ChatPrompt) -> ChatPrompt | None:
    """The prompt without its oldest turn; None when only the last turn is left.

    A turn begins with a user's message and reaches to the next one, so that no answer of a tool is left
    without its call. What systems and developers said stays.
    """
    messages = prompt.messages
    users = [place for place, message in enumerate(messages) if message.role == "user"]
    if len(users) < 2:
        return None
    following = users[1]
    kept = tuple(message for message in messages[:following] if message.role in _KEPT)
    return replace(prompt, messages=(*kept, *messages[following:]))
