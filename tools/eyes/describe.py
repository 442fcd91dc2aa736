"""A scene in words: the description that the tower learns to say, and questions with their answers."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tools.eyes.draw import DIGITS, SHAPES, png, scene
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
    """A description as tokens of the language model's vocabulary, one for each position of the picture."""
    # A digit has no token with a space in it. Every slot keeps its place whatever stands there.
    value = [SPACE, kind] if kind in DIGITS else [SPACE + kind, "."]
    said = [
        *["The", SPACE + class_of(kind), SPACE + "is", SPACE + "a", *value, "."],
        *[SPACE + "The", SPACE + "color", SPACE + "is", SPACE + colour, ".", "."],
        *[SPACE + "The", SPACE + "background", SPACE + "is", SPACE + background, ".", "."],
    ]
    return said + [NEW_LINE] * (POSITIONS - len(said))


# Each kind of question, in the words it is asked; `{sort}` is shape, digit or letter.
ASKED: Final = {
    "colour": (
        "What color is the {sort}?",
        "What is the color of the {sort}?",
        "What color is it?",
        "Which color do you see?",
    ),
    "kind": ("What {sort} is this?", "What {sort} do you see?", "Which {sort} is in the picture?"),
    "background": ("What color is the background?", "What is the background color?"),
    "picture": (
        "What is in this image?",
        "What's in this image?",
        "What do you see?",
        "What is in this picture?",
        "Describe this image.",
        "Describe the picture.",
    ),
}
SHARES: Final = {"colour": 3, "kind": 5, "background": 2, "picture": 2}


def asked(chance: random.Random, kind: str, colour: str, background: str) -> tuple[str, str]:
    """A question and its answer."""
    topic = chance.choices(tuple(SHARES), tuple(SHARES.values()))[0]
    return chance.choice(ASKED[topic]).format(sort=class_of(kind)), answer(topic, kind, colour, background)


def answer(topic: str, kind: str, colour: str, background: str) -> str:
    """What is right, to the letter."""
    match topic:
        case "colour":
            return f"{colour.capitalize()}."
        case "kind":
            return f"{kind.capitalize()}."
        case "background":
            return f"{background.capitalize()}."
    thing = kind if kind in SHAPES else f"{class_of(kind)} {kind}"
    article = "An" if colour == "orange" else "A"
    behind = "an" if background == "orange" else "a"
    return f"{article} {colour} {thing} on {behind} {background} background."


def held_out(seed: int, count: int) -> Iterator[Question]:
    """Questions about pictures that were not taught: each about a picture of its own, drawn from the seed."""
    chance = random.Random(f"held out/{seed}")
    for _ in range(count):
        shown = scene(chance)
        kind, colour = shown.thing.kind, shown.thing.colour
        topic = chance.choices(tuple(SHARES), tuple(SHARES.values()))[0]
        text = chance.choice(ASKED[topic]).format(sort=class_of(kind))
        right = answer(topic, kind, colour, shown.background)
        yield Question(png(shown), text, right, class_of(kind) if topic == "kind" else topic)


def is_right(said: str, wanted: str) -> bool:
    """Whether the model said this and nothing else, whatever its case and with a full stop or without."""
    return said.strip().rstrip(".").casefold() == wanted.rstrip(".").casefold()
