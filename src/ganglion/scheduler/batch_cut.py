"""Cuts a prompt whose numbers somebody wants into batches, so that they depend on the prompt alone.

Law: the library rounds activations to 8 bits, so one last bit that differs early becomes hundredths of a nat
at the end: numbers are the same only where every bit is. Three things move bits: where in the cache a
sequence's cells lie, since attention sums them in that order and by tiles; how many rows are computed at
once, since few and many have kernels of their own; and which rows of a batch are neighbours. So such a prompt
runs alone in its batches, cut at fixed positions, in a private slot: there its cells always lie the same.
What fits no private slot runs in the shared context, where its neighbours' cells move its own.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BatchCut:
    """Where batches end: at every multiple of `rows`, unless less than `least` would be left at the end.

    Cached KV is continued at such a multiple, so that the batches after it are the same as without it.
    """

    rows: int
    least: int = 1

    def count(self, held: int, missing: int) -> int:
        """How many tokens the next batch holds, of a prompt of which so many have KV and so many have not."""
        count = min(self.rows - held % self.rows, missing)
        return missing if missing - count < self.least else count

    def reusable(self, limit: int, length: int) -> int:
        """How many tokens of a prompt of that length cached KV may stand for, of `limit` at most."""
        most = max(min(limit, length - self.least), 0)
        return most - most % self.rows


BY_TILES: Final = BatchCut(64, least=64)
"""Processors compute attention over so many rows, and more, by the quicker of their kernels."""
