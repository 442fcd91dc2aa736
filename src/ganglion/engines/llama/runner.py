"""Carries out the scheduler's steps on the native library: moves first, then one batch."""

from collections.abc import Mapping
from time import perf_counter
from typing import assert_never

from ganglion.core.errors import EngineFailed
from ganglion.engines.llama.library import Blob, NativeContext, NativeModel
from ganglion.engines.llama.plan import LARGEST_CHUNK, EnginePlan
from ganglion.scheduler.places import BlobId, Copy, Discard, Load, Move, Place, Save, Share, Trim
from ganglion.scheduler.pool import KvPool, SequenceId
from ganglion.scheduler.scheduler import Step
from ganglion.scheduler.sequence import Sequence


class Runner:
    """One native context a lane, and the blobs that were parked."""

    def __init__(self, model: NativeModel, plan: EnginePlan) -> None:
        self._lanes = [
            model.new_context(
                cells=lane.total_cells,
                slots=lane.slots,
                is_unified=lane.is_shared,
                batch=max(LARGEST_CHUNK, lane.slots),
                threads=plan.threads,
                kv_type=plan.kv_type,
                flash_attention=False if plan.is_deterministic else None,
            )
            for lane in plan.lanes
        ]
        self._blobs: dict[BlobId, Blob] = {}
        self.decode_s = 0.0

    def lane(self, number: int) -> NativeContext:
        """The context behind a lane."""
        return self._lanes[number]

    def run(
        self, step: Step, pool: KvPool, sequences: Mapping[SequenceId, Sequence]
    ) -> dict[SequenceId, int]:
        """Run a step; returns the logits row of each sequence that wanted one."""
        for move in step.moves:
            self._carry_out(move)
        runs = [
            (
                pool.place(chunk.sequence).slot,
                chunk.start,
                sequences[chunk.sequence].tokens[chunk.start : chunk.start + chunk.count],
                chunk.wants_logits,
            )
            for chunk in step.chunks
        ]
        began_s = perf_counter()
        rows = self._lanes[step.lane].decode(runs)
        self.decode_s += perf_counter() - began_s
        return {chunk.sequence: row for chunk, row in zip(step.chunks, rows, strict=True) if row is not None}

    def _carry_out(self, move: Move) -> None:
        match move:
            case Trim(place=place, length=length):
                self._trim(place, length)
            case Share(source=source, target=target, length=length):
                self._lanes[source.lane].share(source.slot, target.slot, length)
            case Copy(source=source, target=target, length=length):
                self._lanes[target.lane].load(target.slot, self._lanes[source.lane].save(source.slot))
                self._trim(target, length)
            case Save(place=place, blob=blob):
                self._blobs[blob] = self._lanes[place.lane].save(place.slot)
            case Load(blob=blob, place=place, length=length):
                self._lanes[place.lane].load(place.slot, self._blobs[blob])
                self._trim(place, length)
            case Discard(blob=blob):
                del self._blobs[blob]
            case _:
                assert_never(move)

    def _trim(self, place: Place, length: int) -> None:
        if not self._lanes[place.lane].trim(place.slot, length):
            raise EngineFailed(f"The library could not cut slot {place.slot} to {length} tokens.")
