"""Token healing: which tokens at the end of a prompt are better written again.

A prompt that ends in "http:" is tokenized as if it ended there, and a model that was trained on "://" as one
token finds nothing likely after ":". So the last token is taken back, and the answer begins with its text.
"""

from dataclasses import dataclass
from typing import Final

from ganglion.client.flow import Flow
from ganglion.client.station import Station
from ganglion.core.request import PLACEHOLDER

MOST: Final = 4
"""Tokens that are taken back to have whole characters."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """From which position on tokens are written again, and what they say."""

    start: int
    text: str


def unfinished(station: Station, model: str, tokens: tuple[int, ...]) -> Flow[Unfinished | None]:
    """The last tokens of a prompt as text; None where there is no ordinary one, or none before it.

    A control token is not written again: its text, tokenized as text, is something else.
    """
    for count in range(1, min(MOST, len(tokens) - 1) + 1):
        last = tokens[-count:]
        if PLACEHOLDER in last:
            return None
        written = b"".join((yield from station.detokenize(model, last)).pieces)
        try:
            text = written.decode()
        except UnicodeDecodeError:
            continue
        again = yield from station.tokenize(model, text, add_special=False, parse_special=False)
        return Unfinished(len(tokens) - count, text) if text and again == last else None
    return None
