"""Marks the places of images in messages before a template renders them, and finds them again afterwards.

Law: a mark is new for each request, so no text that a client wrote can be taken for one, and one that the
template dropped, doubled or changed is an error: an image is nowhere but where its message has it.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from ganglion.core.errors import InvalidValue
from ganglion.core.request import Attachment, ChatPrompt, Message

_SHOWN: Final = "<image>"
"""Stands for an image where a prompt is shown as text."""


@dataclass(frozen=True, slots=True)
class MarkedPrompt:
    """A prompt without its attachments, whose contents have marks in their places."""

    prompt: ChatPrompt
    attachments: tuple[Attachment, ...]
    marks: tuple[str, ...]
    """One an attachment."""


@dataclass(frozen=True, slots=True)
class SplitText:
    """A rendered prompt around its images: one more piece than there are of them."""

    pieces: tuple[str, ...]
    attachments: tuple[Attachment, ...]
    """In the order of their places."""

    @property
    def shown(self) -> str:
        """The prompt for people."""
        return _SHOWN.join(self.pieces)


def marked(prompt: ChatPrompt, new_nonce: Callable[[], str] = lambda: secrets.token_hex(16)) -> MarkedPrompt:
    """Put marks into the contents; without attachments the prompt stays what it is."""
    attachments = tuple(each for message in prompt.messages for each in message.attachments)
    if not attachments:
        return MarkedPrompt(prompt, (), ())
    nonce = new_nonce()
    # Letters and digits, and an end that no other mark goes on from: no filter of a template rewrites them.
    marks = tuple(f"img{nonce}n{number}e" for number in range(len(attachments)))
    unused = iter(marks)
    messages = tuple(_with_marks(message, unused.__next__) for message in prompt.messages)
    return MarkedPrompt(replace(prompt, messages=messages), attachments, marks)


def _with_marks(message: Message, next_mark: Callable[[], str]) -> Message:
    if not message.attachments:
        return message
    parts: list[str] = []
    end = 0
    for attachment in message.attachments:
        parts += [message.content[end : attachment.at], next_mark()]
        end = attachment.at
    return replace(message, content="".join([*parts, message.content[end:]]), attachments=())


def has_all(text: str, prompt: MarkedPrompt) -> bool:
    """Whether each mark is in the text exactly once."""
    return all(text.count(mark) == 1 for mark in prompt.marks)


def split(text: str, prompt: MarkedPrompt) -> SplitText:
    """Cut a rendered prompt at its marks; raises InvalidValue unless each is there exactly once."""
    if not has_all(text, prompt):
        raise InvalidValue(
            "The model's chat template does not show each image of the messages exactly once.",
            param="messages",
            hint="Put images into messages of the user, or load the model with another template: "
            "--chat-template.",
        )
    found = sorted(
        (text.index(mark), mark, attachment)
        for mark, attachment in zip(prompt.marks, prompt.attachments, strict=True)
    )
    borders = [(0, 0), *((place, place + len(mark)) for place, mark, _ in found), (len(text), len(text))]
    pieces = tuple(text[end:start] for (_, end), (start, _) in pairwise(borders))
    return SplitText(pieces, tuple(attachment for _, _, attachment in found))
