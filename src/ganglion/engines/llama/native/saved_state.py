"""A sequence's KV as bytes that fit every context of its model."""

from typing import Final

import numpy as np
import numpy.typing as npt


class SavedState:
    """A sequence's KV as bytes, with room around it for the header that each target context expects.

    The library writes `magic, slot, streams`, then for each stream its number of cells and the cells. It
    refuses a state whose number of streams is not its own, although the cells are the same: so the header is
    written anew for each target, in place, and nothing is copied.
    """

    MARGIN: Final = 1024
    """Four bytes for each of the most slots that a context can have."""
    HEADER: Final = 12
    WORD: Final = 4
    """What the size of the cells is a multiple of, so that the words after them can be written in place."""

    def __init__(self, words: npt.NDArray[np.uint32], magic: int, end: int) -> None:
        self._words = words
        self.magic = magic
        self._end = end

    @classmethod
    def blank(cls, magic: int, size_bytes: int) -> "SavedState":
        """Room for cells of that size, to be filled in place."""
        end = cls.MARGIN + cls.HEADER + size_bytes
        return cls(np.empty((end + cls.MARGIN) // 4 + 1, np.uint32), magic, end)

    @property
    def cells(self) -> memoryview:
        """The bytes that are the same in every context, to be read or filled."""
        return self._words.data.cast("B")[self.MARGIN + self.HEADER : self._end]

    def framed(self, slot: int, streams: int) -> tuple[int, int]:
        """Address and size of the state as a context with so many streams wrote it."""
        start = self.MARGIN // 4
        self._words[start : start + 3] = (self.magic, slot, streams)
        self._words[self._end // 4 : self._end // 4 + streams - 1] = 0
        return self._words.ctypes.data + self.MARGIN, self._end - self.MARGIN + 4 * (streams - 1)
