"""Carries out the scheduler's steps on the native library: moves first, then one batch.

Law: a native context is touched by one thread at a time. A step aside holds its lane's context until it is
computed; whoever needs that context meanwhile waits.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import assert_never

from ganglion.core.errors import EngineFailed
from ganglion.engines.llama.concepts.capture import BatchRun, Capture, Split
from ganglion.engines.llama.concepts.pack import ConceptBook
from ganglion.engines.llama.concepts.steering import Steerer
from ganglion.engines.llama.native.context import Floats, NativeContext
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.native.saved_state import SavedState
from ganglion.engines.llama.plan import EnginePlan
from ganglion.scheduler.pool import KvPool
from ganglion.scheduler.prefix_catalogue import SequenceId
from ganglion.scheduler.scheduler import Step
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.slots import BlobId, Copy, Discard, Move, Restore, Save, Share, Slot, Trim
from ganglion.scheduler.spans import Spans, shifted


@dataclass(slots=True, eq=False)
class BackgroundStep:
    """A step in the background; `rows` and `elapsed_s` are there once it is computed, or what it raised."""

    step: Step
    computed: threading.Event = field(default_factory=threading.Event)
    rows: dict[SequenceId, int] = field(default_factory=dict)
    elapsed_s: float = 0.0
    error: Exception | None = None


class Runner:
    """One native context a lane, and the blobs that were parked; with a book, concepts are read out."""

    def __init__(self, model: NativeModel, plan: EnginePlan, book: ConceptBook | None = None) -> None:
        batches = [plan.batch(number) for number in range(len(plan.lanes))]
        self._captures = [Capture(model, book, batch=batch) for batch in batches] if book is not None else []

        def new_context(number: int) -> NativeContext:
            lane = plan.lanes[number]
            return model.new_context(
                cells=lane.total_cells,
                slots=lane.slots + lane.is_shared,
                is_unified=lane.is_shared,
                batch=batches[number],
                threads=plan.threads,
                kv_type=plan.kv_type,
                flash_attention=False if plan.is_deterministic else None,
                eval_callback=self._captures[number].filter.hook if self._captures else None,
            )

        # Side by side: most of it is the clearing of cells.
        with ThreadPoolExecutor() as threads:
            usual = [number for number, lane in enumerate(plan.lanes) if not lane.is_exact]
            self._lanes = dict(zip(usual, threads.map(new_context, usual), strict=True))
        self._new_context = new_context
        self._steerer = Steerer(book, model.block_count)
        self._steered_by = [""] * len(plan.lanes)
        for number, context in self._lanes.items():
            self._learn(number, context)
        self._can_trim = model.can_trim
        self._shapes = plan.lanes
        self._spare = plan.lanes[-1].slots
        """A slot of the shared lane that nothing lives in, for cutting what is read whole."""
        self._blobs: dict[BlobId, SavedState] = {}
        self._aside: BackgroundStep | None = None
        self.decode_s = 0.0

    def can_steer(self, steering: str) -> bool:
        """Whether the vectors of a steering are there."""
        return not steering or self._steerer.knows(steering)

    def lane(self, number: int) -> NativeContext:
        """The context behind a lane, once no step in the background uses it; an exact one is made now."""
        if self._aside is not None and self._aside.step.lane == number:
            self._aside.computed.wait()
        if number not in self._lanes:
            self._lanes[number] = self._new_context(number)
            self._learn(number, self._lanes[number])
        return self._lanes[number]

    def _learn(self, number: int, context: NativeContext) -> None:
        if self._captures:
            self._captures[number].learn(context)

    @property
    def is_aside(self) -> bool:
        """Whether a step in the background was started and not collected yet."""
        return self._aside is not None

    @property
    def reads_outputs(self) -> bool:
        """Whether a position can be read only where its logits are wanted."""
        return any(capture.reads_outputs for capture in self._captures)

    def readouts(self, lane: int, first: int, count: int) -> Floats:
        """What the last batch of a lane read of rows that follow each other: `[rows, layers, concepts]`."""
        return self._captures[lane].values(first, count)

    def run(
        self, step: Step, pool: KvPool, sequences: Mapping[SequenceId, Sequence]
    ) -> dict[SequenceId, int]:
        """Run a step; returns the logits row of each sequence that wanted one."""
        runs = self._prepare(step, pool, sequences)
        began_s = perf_counter()
        self.lane(step.lane)  # once nobody uses it
        rows = self._decode(step, runs)
        self.decode_s += perf_counter() - began_s
        return _rows_of(step, rows)

    def run_aside(
        self,
        step: Step,
        pool: KvPool,
        sequences: Mapping[SequenceId, Sequence],
        when_computed: Callable[[BackgroundStep], None],
    ) -> None:
        """Start a step in the background; one at a time, `collect` makes room for the next."""
        assert self._aside is None
        runs = self._prepare(step, pool, sequences)
        self._aside = aside = BackgroundStep(step)

        def compute() -> None:
            began_s = perf_counter()
            try:
                aside.rows = _rows_of(step, self._decode(step, runs))
            except Exception as error:  # noqa: BLE001 - raised again where it is collected
                aside.error = error
            aside.elapsed_s = perf_counter() - began_s
            aside.computed.set()
            when_computed(aside)

        threading.Thread(target=compute, daemon=True).start()

    def collect(self, aside: BackgroundStep) -> dict[SequenceId, int]:
        """The logits rows of a step that was computed in the background."""
        self._aside = None
        self.decode_s += aside.elapsed_s
        if aside.error is not None:
            raise aside.error
        return aside.rows

    def settle(self, moves: Iterable[Move]) -> None:
        """Let the step in the background end and carry out moves that precede no step."""
        if self._aside is not None:
            self._aside.computed.wait()
            if self._aside.error is not None:
                raise self._aside.error
        for move in moves:
            self._carry_out(move)

    def state(self, source: Slot | BlobId) -> SavedState:
        """What a slot or a blob holds."""
        if isinstance(source, Slot):
            return self.lane(source.lane).save(source.slot)
        return self._blobs[source]

    def cut(self, source: Slot | BlobId, length: int) -> SavedState:
        """What a slot or a blob holds, its first positions at least."""
        return self._cut(source, length) if isinstance(source, Slot) else self._blobs[source]

    def sample(self) -> SavedState:
        """One cell as the library writes it here, to know states of this model by."""
        lane = self.lane(len(self._shapes) - 1)
        lane.decode([(self._spare, 0, [0], False)])
        state = lane.save(self._spare)
        lane.trim(self._spare, 0)
        return state

    def hold(self, blob: BlobId, state: SavedState) -> None:
        """Keep a state that the pool adopted."""
        self._blobs[blob] = state

    def _decode(self, step: Step, runs: list[BatchRun]) -> list[int | None]:
        context = self._lanes[step.lane]
        more = _more_rows(step)
        if not self._captures:
            return context.decode(runs, more)
        capture = self._captures[step.lane]
        read = _read_rows(step)
        return capture.decode(
            context, runs, (*more, *read) if capture.reads_outputs else more, read, self._split(step.lane)
        )

    def _split(self, lane: int) -> Split:
        """How the library computes a lane's batches: several caches in one are read evenly."""
        if not self._can_trim:
            return "even"
        return "whole" if self._shapes[lane].is_shared else "consecutive"

    def _prepare(self, step: Step, pool: KvPool, sequences: Mapping[SequenceId, Sequence]) -> list[BatchRun]:
        for move in step.moves:
            self._carry_out(move)
        self._steer(step)
        return [
            (
                pool.place(chunk.sequence).slot,
                chunk.start,
                sequences[chunk.sequence].tokens[chunk.start : chunk.start + chunk.count],
                chunk.wants_logits,
            )
            for chunk in step.chunks
        ]

    def _steer(self, step: Step) -> None:
        if self._steered_by[step.lane] != step.steering:
            vectors = self._steerer.vectors(step.steering) if step.steering else None
            self.lane(step.lane).steer(vectors)
            self._steered_by[step.lane] = step.steering

    def _carry_out(self, move: Move) -> None:
        match move:
            case Trim(place=place, length=length):
                self._trim(place, length)
            case Share(source=source, target=target, length=length):
                self.lane(source.lane).share(source.slot, target.slot, length)
            case Copy(source=source, target=target, length=length):
                self._bring(self._cut(source, length), target, length)
            case Save(place=place, blob=blob):
                self._blobs[blob] = self.lane(place.lane).save(place.slot)
            case Restore(blob=blob, place=place, length=length):
                self._bring(self._blobs[blob], place, length)
            case Discard(blob=blob):
                del self._blobs[blob]
            case _:
                assert_never(move)

    def _cut(self, source: Slot, length: int) -> SavedState:
        """The first positions of a slot as a blob; of a private slot all of it, which is as cheap."""
        lane = self.lane(source.lane)
        if not self._shapes[source.lane].is_shared:
            return lane.save(source.slot)
        lane.share(source.slot, self._spare, length)
        blob = lane.save(self._spare)
        lane.trim(self._spare, 0)
        return blob

    def _bring(self, blob: SavedState, target: Slot, length: int) -> None:
        """Read a blob into a slot and keep its first positions."""
        lane = self.lane(target.lane)
        if not lane.try_load(target.slot, blob):
            shared = self.lane(len(self._shapes) - 1)
            shared.load(self._spare, blob)
            shared.trim(self._spare, length)
            cut = shared.save(self._spare)
            shared.trim(self._spare, 0)
            lane.load(target.slot, cut)
        self._trim(target, length)

    def _trim(self, place: Slot, length: int) -> None:
        if not self.lane(place.lane).trim(place.slot, length):
            raise EngineFailed(f"The library could not cut slot {place.slot} to {length} tokens.")


def _more_rows(step: Step) -> Spans:
    """The rows of the batch at the positions whose logits are wanted beside the chunks' last ones."""
    return tuple(
        span
        for chunk, first in zip(step.chunks, step.first_rows(), strict=True)
        for span in shifted(chunk.wanted, first - chunk.start)
    )


def _read_rows(step: Step) -> Spans:
    """The rows of the batch at the positions whose residual stream is wanted."""
    return tuple(
        span
        for chunk, first in zip(step.chunks, step.first_rows(), strict=True)
        for span in shifted(chunk.readout, first - chunk.start)
    )


def _rows_of(step: Step, rows: list[int | None]) -> dict[SequenceId, int]:
    return {chunk.sequence: row for chunk, row in zip(step.chunks, rows, strict=True) if row is not None}
