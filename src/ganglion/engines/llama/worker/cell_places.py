"""Where cells lie among a sequence's positions, for models whose pictures take fewer positions than cells.

Law: how many cells a slot or a blob holds is the pool's to say; this says which position the next one has. It
follows each move of cells, so that both mean the same cells.
"""

from ganglion.scheduler.slots import BlobId, Slot

_Source = Slot | BlobId
_Lost = tuple[int, int]
"""Where a picture ends, in cells, and how many positions fewer than cells it takes."""


class CellPlaces:
    """Of each slot and blob, where its pictures end."""

    def __init__(self) -> None:
        self._lost: dict[_Source, tuple[_Lost, ...]] = {}

    @property
    def is_plain(self) -> bool:
        """Whether positions and cells are the same everywhere."""
        return not self._lost

    def position(self, source: _Source, cells: int) -> int:
        """The position after so many cells; not inside a picture."""
        return cells - sum(lost for end, lost in self._lost.get(source, ()) if end <= cells)

    def grow(self, slot: Slot, end: int, lost: int) -> None:
        """A picture of a slot ends here."""
        self._put(slot, (*self._lost.get(slot, ()), (end, lost)))

    def carry(self, source: _Source, target: _Source, cells: int) -> None:
        """The target holds the source's first cells now."""
        self._put(target, tuple(each for each in self._lost.get(source, ()) if each[0] <= cells))

    def forget(self, source: _Source) -> None:
        """Nothing is held there any more."""
        self._lost.pop(source, None)

    def _put(self, source: _Source, lost: tuple[_Lost, ...]) -> None:
        if lost:
            self._lost[source] = lost
        else:
            self._lost.pop(source, None)
