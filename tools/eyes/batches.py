"""Whole batches of pictures composed from masks that were drawn once, in the size the tower takes.

A mask is drawn in the picture's own size and then shrunk as the projector's preprocessing shrinks pictures;
shrinking is linear, so composing afterwards gives what shrinking the composed picture gives, up to rounding.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from tools.eyes.draw import COLOURS, NEUTRAL, SIDES, apart, mask, placed, shrunk
from tools.eyes.sizes import DEVIATION, MEAN, SIDE
from torch import Tensor

NAMES = tuple(COLOURS)
PALETTE = torch.tensor([COLOURS[name] for name in NAMES], dtype=torch.float32) / 255


@dataclass(frozen=True, slots=True)
class Batch:
    """Pictures as the tower takes them, and what each shows as indices into KINDS and NAMES."""

    pictures: Tensor
    kinds: Tensor
    colours: Tensor
    backgrounds: Tensor


def masks(kinds: tuple[str, ...], each: int, seed: int) -> Tensor:
    """`each` masks of every kind, (kinds, each, SIDE, SIDE) of bytes."""
    drawn = np.zeros((len(kinds), each, SIDE, SIDE), np.uint8)
    for row, kind in enumerate(kinds):
        chance = random.Random(f"{seed}/{kind}")
        for column in range(each):
            thing = placed(chance, kind, "white")
            drawn[row, column] = shrunk(mask(thing, chance.choice(SIDES)), SIDE)
    return torch.from_numpy(drawn)


def pairs() -> tuple[Tensor, Tensor]:
    """Every colour on every background it can be told from: on neutral backgrounds, and on any."""
    every = [(NAMES.index(c), NAMES.index(b)) for b in NAMES for c in NAMES if apart(c, b)]
    neutral = [pair for pair in every if NAMES[pair[1]] in NEUTRAL]
    return torch.tensor(neutral), torch.tensor(every)


def batch(drawn: Tensor, size: int, generator: torch.Generator, coloured: float = 0.3) -> Batch:
    """A batch of random pictures; `coloured` is the share that may stand on any background."""
    neutral, every = pairs()
    kinds = torch.randint(len(drawn), (size,), generator=generator)
    chosen = drawn[kinds, torch.randint(drawn.shape[1], (size,), generator=generator)]
    any_pair = every[torch.randint(len(every), (size,), generator=generator)]
    neutral_pair = neutral[torch.randint(len(neutral), (size,), generator=generator)]
    pair = torch.where(torch.rand(size, 1, generator=generator) < coloured, any_pair, neutral_pair)
    cover = (chosen.float() / 255)[:, None]
    front, back = (
        (PALETTE[pair[:, side]] + 0.02 * torch.randn(size, 3, generator=generator))[:, :, None, None]
        for side in (0, 1)
    )
    pictures = back * (1 - cover) + front * cover
    pictures = pictures + 0.01 * torch.randn(pictures.shape, generator=generator)
    return Batch((pictures.clamp(0, 1) - MEAN) / DEVIATION, kinds, pair[:, 0], pair[:, 1])
