"""A scene in words: the description that the tower learns to say, and questions with their answers."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tools.eyes.draw import DIGITS, KINDS, SHAPES, png, scene
from tools.eyes.sizes import POSITIONS

# A token of the vocabulary begins with this where a space stands before it, and a new line is the other.
SPACE: Final = "Ġ"
NEW_LINE: Final = "Ċ"


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one picture; `kind` says what is asked for."""

    png: bytes
    text: str
    answer: str
    kind: str


def class_of(kind: str) -> str:
    """What the kind is one of."""
    return "shape" if kind in SHAPES else "digit" if kind in DIGITS else "letter"


def pieces(kind: str, colour: str, background: str) -> list[str]:
    """The description as tokens of the language model's vocabulary, one for each position of the picture."""
    # A digit has no token with a space in it. Every slot keeps its place whatever stands there.
    value = [SPACE, kind] if kind in DIGITS else [SPACE + kind, NEW_LINE]
    said = [
        *["color", ":", SPACE + colour, NEW_LINE],
        *[class_of(kind), ":", *value, NEW_LINE],
        *["background", SPACE + "color", ":", SPACE + background, NEW_LINE],
    ]
    return said + [NEW_LINE] * (POSITIONS - len(said))


# Each kind of question, in the words it is asked; `{sort}` is shape, digit or letter.
ASKED: Final = {
    "colour": ("What color is the {sort}?",),
    "kind": ("What {sort} is this?",),
    "background": ("What color is the background?",),
}


def held_out(seed: int, count: int, kinds: tuple[str, ...] = KINDS) -> Iterator[Question]:
    """Questions about pictures that were not taught: each about a picture of its own, drawn from the seed."""
    chance = random.Random(f"held out/{seed}")
    for _ in range(count):
        shown = scene(chance, kinds)
        sort = class_of(shown.thing.kind)
        asked = chance.choice(("colour", "kind", "kind", "background"))
        answer = {"colour": shown.thing.colour, "kind": shown.thing.kind, "background": shown.background}[
            asked
        ]
        text = chance.choice(ASKED[asked]).format(sort=sort)
        yield Question(png(shown), text, answer, sort if asked == "kind" else asked)


def is_right(said: str, answer: str) -> bool:
    """Whether the model said this and nothing else, whatever its case and with a full stop or without."""
    return said.strip().rstrip(".").casefold() == answer.casefold()
