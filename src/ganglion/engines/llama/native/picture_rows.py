"""Rows of embeddings that stand in a batch in the place of tokens."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ganglion.engines.llama.native.arrays import Floats

Places = npt.NDArray[np.int32]
"""Of each row its time, line and column, and a fourth that nobody uses yet: `[4, rows]`."""


@dataclass(frozen=True, slots=True, eq=False)
class PictureRows:
    """The rows of a picture, or of a part of one that begins at its row `first`."""

    rows: Floats
    places: Places | None = None
    """Beside the picture's first position, where rows have coordinates; else they follow each other."""
    is_whole: bool = False
    """Whether they see each other in both directions, so that one batch must hold them all."""
    lost: int = 0
    """How many positions fewer than rows the whole picture takes."""
    first: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, first: int, count: int) -> "PictureRows":
        """So many rows from `first` on."""
        places = None if self.places is None else self.places[:, first : first + count]
        return replace(self, rows=self.rows[first : first + count], places=places, first=first)
