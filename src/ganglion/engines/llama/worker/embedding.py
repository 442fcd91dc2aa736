"""Makes vectors of token lists, over a context of its own beside the one that generates.

Law: one thread calls this. The context is made when the first vector is asked for and kept; after an error of
the library it is made anew.
"""

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ganglion.core.errors import GanglionError
from ganglion.engines.fair_thread import FairThread
from ganglion.engines.llama.native.arrays import Floats
from ganglion.engines.llama.native.context import NativeContext
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.plan import VectorPlan
from ganglion.engines.supervision.ipc import Embed, FromWorker, Vectors, WorkerProgress

_SLOTS: Final = 64
"""Inputs that share a batch."""


@dataclass(slots=True, eq=False)
class _Input:
    tokens: list[int]
    read: int = 0
    total: npt.NDArray[np.float64] | None = None
    """The sum over the rows read so far, or the last of them."""
    vector: Floats | None = None


@dataclass(slots=True, eq=False)
class _EmbedJob:
    frame: Embed
    inputs: list[_Input] = field(default_factory=list)


class BatchEmbedder:
    """Reads inputs in as few batches as they fit."""

    def __init__(self, model: NativeModel, plan: VectorPlan, *, threads: int) -> None:
        self._model = model
        self._plan = plan
        self._threads = threads
        self._slots = min(_SLOTS, plan.batch)
        self._context: NativeContext | None = None

    def answer(self, frames: Sequence[Embed], on_read: Callable[[], None]) -> Iterator[Vectors]:
        """Answer some questions together, each once all its inputs are read; `on_read` after each batch."""
        jobs = [_EmbedJob(frame, [_Input(tokens) for tokens in frame.inputs]) for frame in frames]
        pending = [each for job in jobs for each in job.inputs]
        try:
            context = self._opened()
            while pending:
                pending = self._read(context, pending)
                on_read()
                while jobs and all(each.vector is not None for each in jobs[0].inputs):
                    yield self._vectors(jobs.pop(0))
            yield from map(self._vectors, jobs)
        except GanglionError:
            self._close()
            raise

    def _vectors(self, job: _EmbedJob) -> Vectors:
        found = [each.vector for each in job.inputs if each.vector is not None]
        if job.frame.is_normalized and self._plan.pooling != "rank":
            found = [_normalized(vector) for vector in found]
        return Vectors(job.frame.id, [vector.tobytes() for vector in found])

    def _read(self, context: NativeContext, pending: list[_Input]) -> list[_Input]:
        if self._plan.is_streamed:
            self._read_in_pieces(context, pending)
        else:
            self._read_whole(context, pending)
        return [each for each in pending if each.vector is None]

    def _read_in_pieces(self, context: NativeContext, pending: list[_Input]) -> None:
        """One batch of the next tokens of some inputs; what is cut goes on in the next batch, in slot 0."""
        runs: list[tuple[int, int, list[int], bool]] = []
        taken: list[tuple[_Input, int]] = []
        room = self._plan.batch
        for slot, each in enumerate(pending[: self._slots]):
            piece = each.tokens[each.read : each.read + room]
            runs.append((slot, each.read, piece, False))
            taken.append((each, len(piece)))
            room -= len(piece)
            if room == 0:
                break
        context.decode(runs, [(0, self._plan.batch - room)])
        row = 0
        for each, count in taken:
            self._pool(each, context.vectors_of(row, count))
            row += count
        last, last_slot = taken[-1][0], len(taken) - 1
        if last.vector is None and last_slot > 0:
            context.trim(0, 0)
            context.share(last_slot, 0, last.read)
        for slot in range(len(taken)):
            if slot > 0 or last.vector is not None:
                context.trim(slot, 0)

    def _pool(self, each: _Input, rows: Floats) -> None:
        each.read += len(rows)
        if self._plan.pooling == "last":
            each.total = rows[-1].astype(np.float64)
        else:
            found = rows.sum(axis=0, dtype=np.float64)
            each.total = found if each.total is None else each.total + found
        if each.read == len(each.tokens):
            divisor = 1 if self._plan.pooling == "last" else each.read
            each.vector = (each.total / divisor).astype(np.float32)

    def _read_whole(self, context: NativeContext, pending: list[_Input]) -> None:
        """One batch of as many whole inputs as fit."""
        taken: list[_Input] = []
        room = self._plan.batch
        for each in pending[: self._slots]:
            if len(each.tokens) > room:
                break
            taken.append(each)
            room -= len(each.tokens)
        runs = [(slot, 0, each.tokens, False) for slot, each in enumerate(taken)]
        context.decode(runs, [(0, self._plan.batch - room)])
        size = self._model.class_count if self._plan.pooling == "rank" else self._model.vector_size
        for slot, each in enumerate(taken):
            each.vector = context.pooled(slot, size)
            if context.has_memory:
                context.trim(slot, 0)

    def _opened(self) -> NativeContext:
        if self._context is None:
            self._context = self._model.new_context(
                cells=self._plan.cells,
                slots=self._slots,
                is_unified=True,
                batch=self._plan.batch,
                threads=self._threads,
                kv_type="f16",
                flash_attention=None,
                pooling="none" if self._plan.is_streamed else self._plan.pooling,
            )
        return self._context

    def _close(self) -> None:
        if self._context is not None:
            self._context.free()
            self._context = None


def _normalized(vector: Floats) -> Floats:
    """The vector with a length of 1; nothing stays nothing."""
    length = float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
    return vector if length == 0.0 else (vector / length).astype(np.float32)


# Law: whoever comes anew waits for the round that is being read, and for at most one question of each other
# tenant.

_MOST_TOKENS: Final = 2**22
MOST_TOKENS_EACH: Final = 2**21
"""What waits, and of one tenant."""
_ROUND_TOKENS: Final = 1024
"""Questions are read together until they have so many tokens: few at a time, and no batch half empty."""


class EmbeddingQueue:
    """Answers questions for vectors; `send` and `refuse` are called on its thread, too."""

    def __init__(
        self,
        embedder: BatchEmbedder,
        send: Callable[[FromWorker], None],
        refuse: Callable[[int, GanglionError], None],
    ) -> None:
        self._embedder = embedder
        self._send = send
        self._refuse = refuse
        self._thread: FairThread[Embed] = FairThread(
            self._work, most=_MOST_TOKENS, most_each=MOST_TOKENS_EACH, of="inputs"
        )

    def ask(self, question: Embed) -> None:
        """Have a question answered; where too much waits, refused."""
        try:
            self._thread.put(question.tenant, question, _tokens_in(question))
        except GanglionError as error:
            self._refuse(question.id, error)

    def _work(self) -> None:
        try:
            while True:
                self._answer(self._round())
        finally:
            traceback.print_exc()
            os._exit(1)

    def _round(self) -> list[Embed]:
        questions = [self._thread.get()]
        room = _ROUND_TOKENS - _tokens_in(questions[0])
        while room > 0 and (question := self._thread.get_now()) is not None:
            questions.append(question)
            room -= _tokens_in(question)
        return questions

    def _answer(self, questions: list[Embed]) -> None:
        waiting = {question.id for question in questions}
        try:
            for vectors in self._embedder.answer(questions, lambda: self._send(WorkerProgress())):
                waiting.remove(vectors.id)
                self._send(vectors)
        except GanglionError as error:
            for number in waiting:
                self._refuse(number, error)


def _tokens_in(question: Embed) -> int:
    return sum(map(len, question.inputs))
