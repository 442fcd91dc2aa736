"""Records of a prompt's tokens: their logprobs from rows of logits, a few rows at a time, and their readouts.

Law: nothing the size of rows times vocabulary is made here: a block of rows is worked on in one scratch, so
that memory stays what it is and the block stays in the processor's cache.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ganglion.core.request import PLACEHOLDER
from ganglion.engines.llama.native.arrays import Floats
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.worker.sampling import NotANumber
from ganglion.engines.supervision.ipc import TokenRecord
from ganglion.scheduler.spans import Spans, clipped

_BLOCK_BYTES: Final = 2**20
"""Logits that are worked on at once."""
_TILE: Final = 64
"""The likeliest tokens are looked for in tiles of so many whose maximum is high enough."""

_Likeliest = list[tuple[int, float]]


class Vocabulary:
    """Token bytes, remembered once asked for."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._known: dict[int, tuple[bytes, bool]] = {}
        self.end_tokens = frozenset(model.end_tokens)

    def __getitem__(self, token: int) -> tuple[bytes, bool]:
        """A token's bytes and whether it is a control token; nothing of what is no token."""
        if token < 0:
            return b"", True
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._model.piece(token), self._model.is_control(token)
        return known


class Scorer:
    """Scores rows of one vocabulary's size."""

    def __init__(self, vocabulary: Vocabulary, vocabulary_size: int) -> None:
        self._vocabulary = vocabulary
        rows = max(_BLOCK_BYTES // (vocabulary_size * 4), 1)
        self._scratch: Floats = np.empty((rows, vocabulary_size), np.float32)

    def score(self, logits: Floats, tokens: Sequence[int], first: int, top: int) -> list[TokenRecord]:
        """A record for each of some tokens of a prompt, the first of which stands at position `first`.

        Row i holds the logits that foretell token i. A token's rank is given where likelier ones are.
        """
        records: list[TokenRecord] = []
        step = len(self._scratch)
        for start in range(0, len(tokens), step):
            rows = logits[start : start + step]
            chosen = np.asarray(tokens[start : start + step])
            normalisers = self._normalisers(rows)
            own = rows[np.arange(len(rows)), chosen]
            values = own - normalisers
            for row, value in enumerate(values.tolist()):
                likeliest = likeliest_of(rows[row], top, float(normalisers[row]))
                rank = 1 + int(np.count_nonzero(rows[row] > own[row])) if top else None
                position = first + start + row
                records.append(self._record(int(chosen[row]), position, value, likeliest, rank))
        return records

    def unscored(self, token: int, position: int) -> TokenRecord:
        """The record of a token that nothing stands before."""
        token = max(token, PLACEHOLDER)
        return TokenRecord(token, self._vocabulary[token][0], position)

    def _normalisers(self, rows: Floats) -> npt.NDArray[np.float64]:
        scratch = self._scratch[: len(rows)]
        highest = rows.max(axis=1, keepdims=True)
        np.subtract(rows, highest, out=scratch)
        np.exp(scratch, out=scratch)
        sums = scratch.sum(axis=1).astype(np.float64)  # summed in pairs, so float32 is exact enough
        found: npt.NDArray[np.float64] = highest[:, 0].astype(np.float64) + np.log(sums)
        if not np.isfinite(found).all():
            raise NotANumber("The model's output is not a number; this prompt cannot be scored.")
        return found

    def _record(
        self, token: int, position: int, logprob: float, likeliest: _Likeliest, rank: int | None
    ) -> TokenRecord:
        top = [(each, self._vocabulary[each][0], value) for each, value in likeliest]
        return TokenRecord(token, self._vocabulary[token][0], position, logprob, top, rank=rank)


def likeliest_of(row: Floats, count: int, normaliser: float) -> _Likeliest:
    """The `count` likeliest tokens of a row with their logprobs, likeliest first."""
    count = min(count, len(row))
    if count == 0:
        return []
    whole = len(row) // _TILE * _TILE
    # A tile is every so manieth token: maxima down columns are four times as fast as along short rows.
    tiles = row[:whole].reshape(_TILE, -1).max(axis=0)
    if len(tiles) > count:
        # So many tiles reach this value that at least `count` tokens do; all others lie below it.
        least = np.partition(tiles, len(tiles) - count)[len(tiles) - count]
        found = np.flatnonzero(row >= least)
    else:
        found = np.arange(len(row))
    ordered = found[np.argsort(-row[found], kind="stable")[:count]]
    return [(int(token), float(row[token]) - normaliser) for token in ordered]


# A token's logprob is known when the token before it has run, its readout when it has run itself: at the
# border of two chunks the record waits for the second.


class PromptRecords:
    """The records of one prompt, as its chunks are computed."""

    def __init__(self, readout: Spans, unscored: Callable[[int], TokenRecord]) -> None:
        """`unscored` makes the record of a position that has no logprob."""
        self._readout = readout
        self._unscored = unscored
        self._waiting: tuple[TokenRecord, ...] = ()

    def merge(
        self, scored: Iterable[TokenRecord], readouts: Iterable[tuple[int, bytes]]
    ) -> list[TokenRecord]:
        """The records that are complete now that a chunk was scored and read."""
        found = {record.position: record for record in chain(self._waiting, scored)}
        for position, readout in readouts:
            record = found.get(position) or self._unscored(position)
            found[position] = replace(record, readout=readout)
        last = max(found, default=0)
        is_early = last in found and not found[last].readout and self._is_read(last)
        self._waiting = (found.pop(last),) if is_early else ()
        return [found[position] for position in sorted(found)]

    def _is_read(self, position: int) -> bool:
        return bool(clipped(self._readout, position, position + 1))
