"""The cells of a saved sequence, as the library writes them: read, cut, and judged before it reads them.

The library writes the number of cells; for each its position, 1, and its slot; four words on how the cache is
kept (whether values lie transposed, the layers, two sizes); then for each layer's keys, and for each layer's
values, a type, the bytes of a row, and a row a cell.
Law: the library trusts what it is given, so what comes from outside must be exactly of the shape that this
worker's own library writes, and hold numbers only.
"""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

CELL: Final = np.dtype([("position", "<i4"), ("slots", "<u4"), ("slot", "<i4")])
COUNT: Final = struct.Struct("<I")
CACHE: Final = struct.Struct("<IIII")
ROWS: Final = struct.Struct("<iQ")
MOST_LAYERS: Final = 4096
EXPONENT: Final = 0x7C00
"""All bits of a half float's exponent: set, it is infinite or no number."""
HALVES: Final = {1: 2, 2: 18, 8: 34}
"""By type, how many bytes lie between two half floats: all of f16, the scales of q4_0 and q8_0."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What all states of one cache have in common."""

    cache: bytes
    rows: tuple[tuple[int, int], ...]
    """The type and the bytes of a row of each block, keys first."""

    def size_bytes(self, count: int) -> int:
        """What so many cells take."""
        blocks = sum(ROWS.size + count * size for _, size in self.rows)
        return COUNT.size + count * CELL.itemsize + CACHE.size + blocks


def shape_of(cells: memoryview) -> Shape | None:
    """The shape of a state of our own library; None where it writes otherwise than is known here."""
    try:
        (count,) = COUNT.unpack_from(cells)
        at = COUNT.size + count * CELL.itemsize
        is_transposed, layers, *_ = CACHE.unpack_from(cells, at)
        cache = bytes(cells[at : at + CACHE.size])
        at += CACHE.size
        rows = []
        for _ in range(2 * min(layers, MOST_LAYERS)):
            kind, size = ROWS.unpack_from(cells, at)
            rows.append((kind, size))
            at += ROWS.size + count * size
    except (struct.error, OverflowError):
        return None
    is_known = not is_transposed and at == len(cells) and all(kind in HALVES for kind, _ in rows)
    return Shape(cache, tuple(rows)) if is_known else None


def first_cells(cells: memoryview, length: int) -> bytes | None:
    """The cells of the first positions, in their order; None where they are not all there."""
    shape = shape_of(cells)
    if shape is None:
        return None
    heads = _heads(cells)
    order = np.argsort(heads["position"], kind="stable")[:length]
    kept = heads[order]
    kept["slot"] = 0
    if not _are_in_order(kept, length):
        return None
    parts = [COUNT.pack(length), kept.tobytes(), shape.cache]
    for (kind, size), rows in zip(shape.rows, _blocks(cells, shape), strict=True):
        parts += [ROWS.pack(kind, size), rows[order].tobytes()]
    return b"".join(parts)


def are_sound(cells: memoryview, count: int, shape: Shape) -> bool:
    """Whether these are so many cells of that shape, in order, and all of them numbers."""
    if len(cells) != shape.size_bytes(count) or COUNT.unpack_from(cells)[0] != count:
        return False
    if shape_of(cells) != shape or not _are_in_order(_heads(cells), count):
        return False
    for (kind, _), rows in zip(shape.rows, _blocks(cells, shape), strict=True):
        halves = rows.reshape(-1, HALVES[kind])[:, :2].copy().view("<u2")
        if ((halves & EXPONENT) == EXPONENT).any():
            return False
    return True


def _heads(cells: memoryview) -> npt.NDArray[np.void]:
    return np.frombuffer(cells, CELL, COUNT.unpack_from(cells)[0], COUNT.size)


def _are_in_order(heads: npt.NDArray[np.void], count: int) -> bool:
    in_order = np.array_equal(heads["position"], np.arange(count))
    return in_order and bool((heads["slots"] == 1).all()) and not heads["slot"].any()


def _blocks(cells: memoryview, shape: Shape) -> list[npt.NDArray[np.uint8]]:
    (count,) = COUNT.unpack_from(cells)
    at = COUNT.size + count * CELL.itemsize + CACHE.size
    found = []
    for _, size in shape.rows:
        at += ROWS.size
        found.append(np.frombuffer(cells, np.uint8, count * size, at).reshape(count, size))
        at += count * size
    return found
