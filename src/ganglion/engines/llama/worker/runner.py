"""Carries out the scheduler's steps on the native library: moves first, then one batch.

Law: a native context is touched by one thread at a time. A step in the background holds its context until it
is computed; whoever needs that context meanwhile waits.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import assert_never

from ganglion.core.errors import EngineFailed
from ganglion.engines.concepts.pack import ConceptBook
from ganglion.engines.concepts.steering import Steerer
from ganglion.engines.llama.concepts.capture import Capture, Split
from ganglion.engines.llama.native.arrays import Floats
from ganglion.engines.llama.native.context import NativeContext, Run
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.native.picture_rows import PictureRows
from ganglion.engines.llama.native.saved_state import SavedState
from ganglion.engines.llama.plan import EnginePlan
from ganglion.engines.llama.worker.cell_places import CellPlaces
from ganglion.engines.llama.worker.graph_sampling import GraphDraw, GraphSampling
from ganglion.engines.llama.worker.padding import Run as TokenRun
from ganglion.engines.llama.worker.padding import of_even_lengths, without_gaps
from ganglion.scheduler.pictures import picture_at
from ganglion.scheduler.pool import KvPool
from ganglion.scheduler.prefix_catalogue import SequenceId
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.slots import BlobId, Copy, Discard, Move, Restore, Save, Share, Slot, Trim
from ganglion.scheduler.spans import Spans, shifted
from ganglion.scheduler.step import Chunk, Step


@dataclass(slots=True, eq=False)
class BackgroundStep:
    """A step in the background; `rows` and `elapsed_s` are there once it is computed, or what it raised."""

    step: Step
    computed: threading.Event = field(default_factory=threading.Event)
    rows: dict[SequenceId, int] = field(default_factory=dict)
    elapsed_s: float = 0.0
    error: Exception | None = None


class Runner:
    """The native KV contexts and the blobs that were parked; with a concepts, concepts are read out."""

    def __init__(self, model: NativeModel, plan: EnginePlan, concepts: ConceptBook | None = None) -> None:
        batches = [plan.batch(number) for number in range(len(plan.kv_contexts))]
        self._captures = (
            [Capture(model, concepts, batch=batch) for batch in batches] if concepts is not None else []
        )

        def new_context(number: int) -> NativeContext:
            shape = plan.kv_contexts[number]
            return model.new_context(
                cells=shape.total_cells,
                slots=shape.slots + shape.is_shared,
                is_unified=shape.is_shared,
                batch=batches[number],
                micro_batch=plan.micro_batch(number),
                threads=plan.threads,
                kv_type=plan.kv_type,
                flash_attention=False if plan.is_deterministic else None,
                eval_callback=self._captures[number].filter.hook if self._captures else None,
            )

        # Side by side: most of it is the clearing of cells.
        with ThreadPoolExecutor() as threads:
            usual = [number for number, shape in enumerate(plan.kv_contexts) if not shape.is_exact]
            self._contexts = dict(zip(usual, threads.map(new_context, usual), strict=True))
        self._new_context = new_context
        self._steerer = Steerer(concepts, model.block_count)
        self._variants = [""] * len(plan.kv_contexts)
        """The variant that each context computes now."""
        for number, context in self._contexts.items():
            self._learn(number, context)
        self._graph = GraphSampling(model) if plan.samples_in_graph else None
        self._can_trim = model.can_trim
        self._shapes = plan.kv_contexts
        self._batches = batches
        self._is_accelerated = plan.is_accelerated
        self._spare = plan.kv_contexts[-1].slots
        """A slot of the shared context that nothing lives in, for cutting what is read whole."""
        self._blobs: dict[BlobId, SavedState] = {}
        self._background: BackgroundStep | None = None
        self._rows: dict[SequenceId, dict[int, PictureRows]] = {}
        """Of pictures, by the sequence and by where in it they begin."""
        self._places = CellPlaces() if model.has_coordinates else None
        self.native_s = 0.0

    def has_variant(self, variant: str) -> bool:
        """Whether this variant of the model can be run: its vectors are there."""
        return not variant or self._steerer.knows(variant)

    def context(self, number: int) -> NativeContext:
        """A KV context, once no step in the background uses it; an exact one is made now."""
        if self._background is not None and self._background.step.kv_context == number:
            self._background.computed.wait()
        if number not in self._contexts:
            self._contexts[number] = self._new_context(number)
            self._learn(number, self._contexts[number])
        return self._contexts[number]

    def _learn(self, number: int, context: NativeContext) -> None:
        if self._captures:
            self._captures[number].learn(context)

    @property
    def has_background_step(self) -> bool:
        """Whether a step in the background was started and not collected yet."""
        return self._background is not None

    @property
    def reads_outputs(self) -> bool:
        """Whether a position can be read only where its logits are wanted."""
        return any(capture.reads_outputs for capture in self._captures)

    def readouts(self, kv_context: int, first: int, count: int) -> Floats:
        """What the last batch of a context read of consecutive rows: `[rows, layers, concepts]`."""
        return self._captures[kv_context].values(first, count)

    def run(
        self,
        step: Step,
        pool: KvPool,
        sequences: Mapping[SequenceId, Sequence],
        draws: Mapping[SequenceId, GraphDraw | None],
    ) -> dict[SequenceId, int]:
        """Run a step; returns the row of each sequence that wanted one, of logits or drawn in the graph."""
        runs = self._prepare(step, pool, sequences, draws)
        began_s = perf_counter()
        self.context(step.kv_context)  # once nobody uses it
        tokens = _runs_of_tokens(runs) if self._is_filled(step) else None
        rows = self._decode(step, runs) if tokens is None else self._decode_filled(step, tokens, pool)
        self.native_s += perf_counter() - began_s
        return _rows_of(step, rows)

    def run_in_background(
        self,
        step: Step,
        pool: KvPool,
        sequences: Mapping[SequenceId, Sequence],
        draws: Mapping[SequenceId, GraphDraw | None],
        on_computed: Callable[[BackgroundStep], None],
    ) -> None:
        """Start a step in the background; one at a time, `collect` makes room for the next."""
        assert self._background is None
        runs = self._prepare(step, pool, sequences, draws)
        self._background = background = BackgroundStep(step)

        def compute() -> None:
            began_s = perf_counter()
            try:
                background.rows = _rows_of(step, self._decode(step, runs))
            except Exception as error:  # noqa: BLE001 - raised again where it is collected
                background.error = error
            background.elapsed_s = perf_counter() - began_s
            background.computed.set()
            on_computed(background)

        threading.Thread(target=compute, daemon=True).start()

    def collect(self, background: BackgroundStep) -> dict[SequenceId, int]:
        """The logits rows of a step that was computed in the background."""
        self._background = None
        self.native_s += background.elapsed_s
        if background.error is not None:
            raise background.error
        return background.rows

    def settle(self, moves: Iterable[Move]) -> None:
        """Let the step in the background end and carry out moves that precede no step."""
        if self._background is not None:
            self._background.computed.wait()
            if self._background.error is not None:
                raise self._background.error
        for move in moves:
            self._carry_out(move)

    def state(self, source: Slot | BlobId) -> SavedState:
        """What a slot or a blob holds."""
        if isinstance(source, Slot):
            return self.context(source.kv_context).save(source.index)
        return self._blobs[source]

    def cut(self, source: Slot | BlobId, length: int) -> SavedState:
        """What a slot or a blob holds, its first positions at least."""
        return self._cut(source, length) if isinstance(source, Slot) else self._blobs[source]

    def sample(self) -> SavedState:
        """One cell as the library writes it here, to know states of this model by."""
        context = self.context(len(self._shapes) - 1)
        context.decode([(self._spare, 0, [0], False)])
        state = context.save(self._spare)
        context.trim(self._spare, 0)
        return state

    def hold(self, blob: BlobId, state: SavedState) -> None:
        """Keep a state that the pool adopted."""
        self._blobs[blob] = state

    def _decode(self, step: Step, runs: list[Run]) -> list[int | None]:
        context = self._contexts[step.kv_context]
        more = _more_rows(step)
        if not self._captures:
            return context.decode(runs, more)
        capture = self._captures[step.kv_context]
        read = _read_rows(step)
        return capture.decode(
            context,
            runs,
            (*more, *read) if capture.reads_outputs else more,
            read,
            self._split(step.kv_context),
        )

    def _is_filled(self, step: Step) -> bool:
        """Whether rows may be added to a batch: where they are cheap, and nobody counts its rows."""
        if self._places is not None and not self._places.is_plain:
            return False
        is_counted = self._captures or any(chunk.logit_spans or chunk.readout for chunk in step.chunks)
        return self._is_accelerated and not self._shapes[step.kv_context].is_shared and not is_counted

    def _decode_filled(self, step: Step, runs: list[TokenRun], pool: KvPool) -> list[int | None]:
        context, cells = self._contexts[step.kv_context], self._shapes[step.kv_context].cells
        most = self._batches[step.kv_context]
        if step.is_decode:
            filled, trims = without_gaps(runs, pool.lengths(step.kv_context), cells, most)
        else:
            filled, trims = of_even_lengths(runs, cells, most)
        rows = context.decode(filled)
        for slot, length in trims:
            self._trim(Slot(step.kv_context, slot), length)
        own = {id(run) for run in runs}
        return [row for run, row in zip(filled, rows, strict=True) if id(run) in own]

    def _split(self, kv_context: int) -> Split:
        """How the library computes a context's batches: several caches in one are read evenly."""
        if not self._can_trim:
            return "even"
        return "whole" if self._shapes[kv_context].is_shared else "consecutive"

    def show(self, sequence: SequenceId, start: int, rows: PictureRows) -> None:
        """Keep the rows of a picture until its sequence is over."""
        self._rows.setdefault(sequence, {})[start] = rows

    def forget(self, sequence: SequenceId, draw: GraphDraw | None) -> None:
        """A sequence is over: it draws no more, and its pictures are not needed."""
        self._rows.pop(sequence, None)
        if self._graph is not None and draw is not None:
            self._graph.leave(draw)

    def _prepare(
        self,
        step: Step,
        pool: KvPool,
        sequences: Mapping[SequenceId, Sequence],
        draws: Mapping[SequenceId, GraphDraw | None],
    ) -> list[Run]:
        for move in step.moves:
            self._carry_out(move)
        self._apply_variant(step)
        self._attach_samplers(step, pool, draws)
        return [
            self._native_run(chunk, pool.slot(chunk.sequence), sequences[chunk.sequence])
            for chunk in step.chunks
        ]

    def _native_run(self, chunk: Chunk, slot: Slot, sequence: Sequence) -> Run:
        inputs = self._input(chunk, sequence)
        start = chunk.start
        if self._places is not None and isinstance(inputs, PictureRows):
            start -= inputs.first  # its coordinates are beside its first position
        run = slot.index, self._at(slot, start), inputs, chunk.wants_logits
        if self._places is not None and isinstance(inputs, PictureRows):
            end = chunk.start + chunk.count
            picture = picture_at(sequence.pictures, chunk.start)
            if picture is not None and picture.end == end:
                self._places.grow(slot, end, inputs.lost)
        return run

    def _at(self, source: Slot | BlobId, cells: int) -> int:
        """The position after so many of the cells of a slot or a blob."""
        return cells if self._places is None else self._places.position(source, cells)

    def _note(self, source: Slot | BlobId, target: Slot | BlobId, cells: int) -> None:
        """The target holds the source's first cells from now on."""
        if self._places is not None:
            self._places.carry(source, target, cells)

    def _input(self, chunk: Chunk, sequence: Sequence) -> list[int] | PictureRows:
        """The tokens of a chunk, or its rows: a chunk is one or the other."""
        picture = picture_at(sequence.pictures, chunk.start)
        if picture is None:
            return sequence.tokens[chunk.start : chunk.start + chunk.count]
        rows = self._rows[sequence.id][picture.start]
        return rows.part(chunk.start - picture.start, chunk.count)

    def _attach_samplers(
        self, step: Step, pool: KvPool, draws: Mapping[SequenceId, GraphDraw | None]
    ) -> None:
        if self._graph is None:
            return
        context = self.context(step.kv_context)
        for chunk in step.chunks:
            if chunk.wants_logits or chunk.logit_spans or chunk.readout:
                self._graph.prepare(context, pool.slot(chunk.sequence), draws.get(chunk.sequence))

    def _apply_variant(self, step: Step) -> None:
        if self._variants[step.kv_context] != step.variant:
            vectors = self._steerer.vectors(step.variant) if step.variant else None
            self.context(step.kv_context).steer(vectors)
            self._variants[step.kv_context] = step.variant

    def _carry_out(self, move: Move) -> None:
        match move:
            case Trim(slot=slot, length=length):
                self._trim(slot, length)
            case Share(source=source, target=target, length=length):
                at = self._at(source, length)
                self.context(source.kv_context).share(source.index, target.index, at)
                self._note(source, target, length)
            case Copy(source=source, target=target, length=length) if self._stays_on_device(source, target):
                at = self._at(source, length)
                self.context(source.kv_context).copy(source.index, target.index, at)
                self._note(source, target, length)
            case Copy(source=source, target=target, length=length):
                self._bring(self._cut(source, length), source, target, length)
            case Save(slot=slot, blob=blob):
                self._blobs[blob] = self.context(slot.kv_context).save(slot.index)
                self._note(slot, blob, self._shapes[slot.kv_context].total_cells)
            case Restore(blob=blob, slot=slot, length=length):
                self._bring(self._blobs[blob], blob, slot, length)
            case Discard(blob=blob):
                del self._blobs[blob]
                if self._places is not None:
                    self._places.forget(blob)
            case _:
                assert_never(move)

    def _stays_on_device(self, source: Slot, target: Slot) -> bool:
        """Whether a slot's cells are copied by the device itself, all of them, which is quick only there."""
        is_near = source.kv_context == target.kv_context and not self._shapes[source.kv_context].is_shared
        return self._is_accelerated and is_near

    def _cut(self, source: Slot, length: int) -> SavedState:
        """The first positions of a slot as a blob; of a private slot all of it, which is as cheap."""
        context = self.context(source.kv_context)
        if not self._shapes[source.kv_context].is_shared:
            return context.save(source.index)
        context.share(source.index, self._spare, self._at(source, length))
        blob = context.save(self._spare)
        context.trim(self._spare, 0)
        return blob

    def _bring(self, state: SavedState, source: Slot | BlobId, target: Slot, length: int) -> None:
        """Read what a source held into a slot and keep its first cells."""
        context = self.context(target.kv_context)
        if not context.try_load(target.index, state):
            shared = self.context(len(self._shapes) - 1)
            shared.load(self._spare, state)
            shared.trim(self._spare, self._at(source, length))
            cut = shared.save(self._spare)
            shared.trim(self._spare, 0)
            context.load(target.index, cut)
        self._note(source, target, length)
        self._trim(target, length)

    def _trim(self, slot: Slot, length: int) -> None:
        if not self.context(slot.kv_context).trim(slot.index, self._at(slot, length)):
            raise EngineFailed(f"The library could not cut slot {slot.index} to {length} tokens.")
        self._note(slot, slot, length)


def _runs_of_tokens(runs: list[Run]) -> list[TokenRun] | None:
    """The same runs where all are of tokens; None where some are of pictures."""
    found = [
        (slot, start, tokens, wants_logits)
        for slot, start, tokens, wants_logits in runs
        if not isinstance(tokens, PictureRows)
    ]
    return found if len(found) == len(runs) else None


def _more_rows(step: Step) -> Spans:
    """The rows of the batch at the positions whose logits are wanted beside the chunks' last ones."""
    return tuple(
        span
        for chunk, first in zip(step.chunks, step.first_rows(), strict=True)
        for span in shifted(chunk.logit_spans, first - chunk.start)
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
