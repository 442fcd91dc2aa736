"""Puts what is told of a prompt's tokens together: each position once, in order, with all that was asked.

A token's logprob is known when the token before it has run, its readout when it has run itself: at the border
of two chunks the record waits for the second.
"""

from collections.abc import Callable, Iterable
from itertools import chain

from msgspec.structs import replace

from ganglion.engines.ipc import TokenRecord
from ganglion.scheduler.spans import Spans, clipped


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
        """What can be told now that a chunk was scored and read."""
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
