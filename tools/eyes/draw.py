"""Pictures of things on a plain background, drawn from a seed: shapes, digits and letters in a colour.

Law: the same seed draws the same picture, pixel for pixel. A picture shows a `Scene`; only `draw` draws it.
"""

import io
import math
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (40, 70, 220),
    "yellow": (245, 220, 40),
    "orange": (250, 140, 20),
    "purple": (130, 50, 170),
    "pink": (250, 150, 190),
    "brown": (120, 70, 30),
    "black": (10, 10, 10),
    "white": (250, 250, 250),
    "gray": (128, 128, 128),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "diamond")
DIGITS = tuple("0123456789")
# O and I are left out: in this font nothing tells them from the digit 0 and from a bar.
LETTERS = tuple("ABCDEFGHJKLMNPQRSTUVWXYZ")
KINDS = SHAPES + DIGITS + LETTERS
NEUTRAL = ("white", "black", "gray")

# Pairs that a person would hardly tell apart once a picture is small and noisy.
CLOSE = tuple(
    frozenset(pair)
    for pair in (
        ("black", "brown"),
        ("white", "pink"),
        ("gray", "brown"),
        ("gray", "purple"),
        ("gray", "pink"),
        ("gray", "green"),
        ("red", "orange"),
        ("red", "pink"),
        ("red", "brown"),
        ("yellow", "white"),
        ("yellow", "orange"),
        ("orange", "pink"),
        ("blue", "purple"),
        ("brown", "purple"),
        ("brown", "green"),
    )
)

# How many times larger a thing is drawn than it is needed, so that its edges are smooth.
OVERSAMPLED = 2


@dataclass(frozen=True, slots=True)
class Thing:
    """One drawn thing: where its middle is and how large it is, both as a part of the picture's side."""

    kind: str
    colour: str
    x: float
    y: float
    size: float
    turn_degrees: float


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture before it is drawn."""

    thing: Thing
    background: str
    side: int


def apart(one: str, other: str) -> bool:
    """Whether two colours can be told apart side by side."""
    return one != other and frozenset((one, other)) not in CLOSE


def any_kind(chance: random.Random) -> str:
    """A shape, a digit or a letter: each sort as often as the others."""
    return chance.choice(chance.choice((SHAPES, DIGITS, LETTERS)))


def scene(chance: random.Random) -> Scene:
    """A scene with one thing, somewhere near the middle."""
    background = chance.choice(NEUTRAL if chance.random() < 0.8 else tuple(COLOURS))
    colour = chance.choice([name for name in COLOURS if apart(name, background)])
    return Scene(placed(chance, any_kind(chance), colour), background, chance.choice(SIDES))


SIDES = (64, 96, 128, 160, 200, 224)


def placed(chance: random.Random, kind: str, colour: str) -> Thing:
    """A thing of this kind with a random size, place and turn; nothing of it leaves the picture."""
    size = chance.uniform(0.55, 0.85)
    slack = min((1 - size) / 2, 0.08)
    most_degrees = 8.0
    return Thing(
        kind,
        colour,
        0.5 + chance.uniform(-slack, slack),
        0.5 + chance.uniform(-slack, slack),
        size,
        chance.uniform(-most_degrees, most_degrees),
    )


def draw(shown: Scene) -> Image.Image:
    """The scene as an RGB picture of `side` pixels."""
    picture = Image.new("RGB", (shown.side, shown.side), COLOURS[shown.background])
    picture.paste(COLOURS[shown.thing.colour], (0, 0), mask(shown.thing, shown.side))
    return picture


def png(shown: Scene) -> bytes:
    """The scene as a PNG file."""
    written = io.BytesIO()
    draw(shown).save(written, "PNG")
    return written.getvalue()


def mask(thing: Thing, side: int) -> Image.Image:
    """Where the thing covers a picture of this side: 255 inside, 0 outside, between on its edge."""
    extent = max(8, round(thing.size * side))
    large = extent * OVERSAMPLED
    shape = Image.new("L", (large, large), 0)
    outline(ImageDraw.Draw(shape), thing.kind, large)
    turned = shape.rotate(thing.turn_degrees, resample=Image.Resampling.BICUBIC)
    small = turned.resize((extent, extent), Image.Resampling.LANCZOS)
    whole = Image.new("L", (side, side), 0)
    whole.paste(small, (round(thing.x * side - extent / 2), round(thing.y * side - extent / 2)))
    return whole


def outline(pen: ImageDraw.ImageDraw, kind: str, side: int) -> None:
    """Fill the shape, or write the character, on a square of this side."""
    low, high, middle = side * 0.06, side * 0.94, side / 2
    match kind:
        case "circle":
            pen.ellipse((low, low, high, high), fill=255)
        case "ring":
            pen.ellipse((low, low, high, high), fill=255)
            pen.ellipse((side * 0.26, side * 0.26, side * 0.74, side * 0.74), fill=0)
        case "square":
            pen.rectangle((side * 0.12, side * 0.12, side * 0.88, side * 0.88), fill=255)
        case "diamond":
            pen.polygon(
                [(middle, low), (side * 0.82, middle), (middle, high), (side * 0.18, middle)], fill=255
            )
        case "triangle":
            pen.polygon([(middle, low), (high, side * 0.88), (low, side * 0.88)], fill=255)
        case "cross":
            arm = side * 0.13
            pen.rectangle((middle - arm, low, middle + arm, high), fill=255)
            pen.rectangle((low, middle - arm, high, middle + arm), fill=255)
        case "star":
            pen.polygon(star(side), fill=255)
        case "heart":
            pen.ellipse((low, low, middle + low, middle + low), fill=255)
            pen.ellipse((middle - low, low, high, middle + low), fill=255)
            pen.polygon([(side * 0.1, side * 0.43), (side * 0.9, side * 0.43), (middle, high)], fill=255)
        case _:
            font = ImageFont.load_default(size=side * 0.95)
            pen.text((middle, middle), kind, fill=255, font=font, anchor="mm")


def star(side: int) -> list[tuple[float, float]]:
    """The ten corners of a star with five points."""
    points = []
    for corner in range(10):
        radius = side * (0.46 if corner % 2 == 0 else 0.19)
        angle = corner * math.pi / 5
        points.append((side / 2 + radius * math.sin(angle), side / 2 - radius * math.cos(angle)))
    return points


def shrunk(picture: Image.Image, side: int) -> NDArray[np.uint8]:
    """A square picture as the projector's preprocessing resizes it: bicubic, as Pillow computes it."""
    return np.asarray(picture.resize((side, side), Image.Resampling.BICUBIC))
