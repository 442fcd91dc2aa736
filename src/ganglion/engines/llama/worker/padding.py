"""Fills a batch up, so that a device computes it in as few passes over the weights as it can. Pure.

The library computes a private context's sequences side by side only where their slots follow each other, and
only as far as they are equally long; each part beyond is a pass of its own. A row costs a device far less
than a pass: so idle slots between decoding ones get a row each, and prompts that are nearly as long as each
other are made so. What such rows computed is forgotten before anything reads it.
"""

from collections.abc import Sequence
from typing import Final

from ganglion.scheduler.slot_table import NEAR

_FILLER: Final = 0
"""A token that every vocabulary has."""
_GRAIN: Final = 32
"""Prompts are filled up to a multiple of this."""

Run = tuple[int, int, Sequence[int], bool]
"""A slot, the first position, the tokens, and whether the last one's logits are wanted."""
Trims = list[tuple[int, int]]
"""Slots to be cut back, and to how many tokens."""


def without_gaps(
    runs: Sequence[Run], lengths: Sequence[int], cells: int, most_rows: int
) -> tuple[list[Run], Trims]:
    """One row each in the idle slots between those that decode; `runs` are in the order of their slots.

    `lengths` says how many tokens each slot holds; a slot that is full has no room for a row.
    """
    filled: list[Run] = []
    trims: Trims = []
    for run in runs:
        if filled:
            gap = range(filled[-1][0] + 1, run[0])
            has_room = all(lengths[slot] < cells for slot in gap)
            if len(gap) <= NEAR and has_room and len(runs) + len(trims) + len(gap) <= most_rows:
                filled += ((slot, lengths[slot], (_FILLER,), False) for slot in gap)
                trims += ((slot, lengths[slot]) for slot in gap)
        filled.append(run)
    return filled, trims


def of_even_lengths(runs: Sequence[Run], cells: int, most_rows: int) -> tuple[list[Run], Trims]:
    """Prompts whose ends are filled up, where several run together and there is room for it."""
    wanted = [-(-len(tokens) // _GRAIN) * _GRAIN for _, _, tokens, _ in runs]
    has_room = all(start + length <= cells for (_, start, _, _), length in zip(runs, wanted, strict=True))
    if len(runs) < 2 or not has_room or sum(wanted) > most_rows:
        return list(runs), []
    filled: list[Run] = []
    trims: Trims = []
    for run, length in zip(runs, wanted, strict=True):
        slot, start, tokens, _ = run
        filled.append(run)
        end, missing = start + len(tokens), length - len(tokens)
        if missing:
            filled.append((slot, end, (_FILLER,) * missing, False))
            trims.append((slot, end))
    return filled, trims
