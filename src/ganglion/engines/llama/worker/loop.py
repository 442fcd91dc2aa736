"""The step loop over one loaded model: what the scheduler decides is run, sampled, reported and committed."""

import os
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final

import numpy as np

from ganglion.core.errors import EngineFailed, InvalidValue, Overloaded
from ganglion.core.model import WorkerLoad
from ganglion.engines.concepts.pack import ConceptBook
from ganglion.engines.llama.faults import inject_faults
from ganglion.engines.llama.grammar.matcher import GrammarMatcher, GrammarOutcome, GrammarService
from ganglion.engines.llama.kv.hot_prefixes import HotPrefixes, LoadedPrefix, open_disk_cache
from ganglion.engines.llama.kv.transfer import KvTransfer, KvTransferResult
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.plan import LARGEST_CHUNK, EnginePlan, output_rows
from ganglion.engines.llama.worker.graph_sampling import GraphDraw
from ganglion.engines.llama.worker.job import Job
from ganglion.engines.llama.worker.pictures import KeptPicture, PictureRead, PictureReader
from ganglion.engines.llama.worker.runner import BackgroundStep, Runner
from ganglion.engines.llama.worker.sampling import NotANumber
from ganglion.engines.llama.worker.scoring import Scorer, Vocabulary
from ganglion.engines.supervision.frame_socket import FrameSocket
from ganglion.engines.supervision.ipc import (
    Abort,
    LoadKv,
    SaveKv,
    SequenceEnd,
    SequenceGone,
    SequenceUpdate,
    Stepped,
    StopWorker,
    Submit,
    TokenRecord,
)
from ganglion.scheduler.batch_cut import BY_TILES, BatchCut
from ganglion.scheduler.pace import Pace
from ganglion.scheduler.pool import KvPool
from ganglion.scheduler.scheduler import Scheduler
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.slot_table import PoolShape
from ganglion.scheduler.spans import merged
from ganglion.scheduler.step import Chunk, Step

# Law: NaN fails its own request. It is the device's fault, and the end of the worker, when every row of a
# batch is NaN, or when several different prompts in a row were, with no good row between them. A lone row
# counts like any other, but a prompt counts once however often it is asked again: it may well be its own
# fault.

_DIFFERENT_PROMPTS: Final = 3


class NanGuard:
    """What the last rows were like."""

    def __init__(self) -> None:
        self._prompts: set[int] = set()
        """Hashes of the prompts that were NaN since the last good row."""

    def check(self, rows: Iterable[tuple[int, bool]]) -> None:
        """Take in a step's rows: each one's prompt, and whether it was numbers; raises when none ever is."""
        seen = list(rows)
        if any(is_number for _, is_number in seen):
            self._prompts.clear()
            return
        self._prompts.update(prompt for prompt, _ in seen)
        if len(seen) > 1:
            raise EngineFailed(f"All {len(seen)} sequences of a batch computed NaN.")
        if len(self._prompts) >= _DIFFERENT_PROMPTS:
            raise EngineFailed(f"{len(self._prompts)} different prompts in a row computed NaN.")


_InboxItem = (
    Submit
    | Abort
    | SaveKv
    | LoadKv
    | KvTransferResult
    | StopWorker
    | BackgroundStep
    | LoadedPrefix
    | GrammarOutcome
    | PictureRead
)
Inbox = SimpleQueue[_InboxItem]
"""What the main thread takes in between steps. Bounded by the requests that the server lets in at once."""

_RUN_TOKENS = 8
"""On a GPU, between a large model on a small one (3) and a small one on a large one (26)."""
_NO_ROOM: Final = "There is no room for the request's pictures beside those of others."
_STALL_S = 0.05
"""How long to wait for news when sequences wait and none can run."""


class StepLoop:
    """The step loop over one loaded model."""

    def __init__(
        self, model: NativeModel, plan: EnginePlan, socket: FrameSocket, concepts: ConceptBook | None = None
    ) -> None:
        self._model = model
        self._plan = plan
        self._socket = socket
        self._concepts = concepts
        self._runner = Runner(model, plan, concepts)
        self._vocabulary = Vocabulary(model)
        shape = PoolShape(
            plan.kv_contexts,
            plan.parked_tokens,
            can_trim=model.can_trim,
            can_move=model.has_one_cache,
            run_tokens=_RUN_TOKENS if plan.gpu_layers else 0,
            is_parked=not plan.is_accelerated,
            is_compact=plan.is_accelerated,
        )
        self._pool = KvPool(shape)
        self._scheduler = Scheduler(
            self._pool,
            Pace(plan.step_s, plan.largest_chunk, plan.largest_background, first_work=plan.first_work),
            context=plan.context,
            parallel=plan.parallel,
            is_deterministic=plan.is_deterministic,
            most_rows=output_rows(model.vocabulary_size),
            exact_cut=BatchCut(LARGEST_CHUNK) if plan.gpu_layers else BY_TILES,
        )
        self._scorer = Scorer(self._vocabulary, model.vocabulary_size)
        self._hot = HotPrefixes(None, self._pool, self._runner, lambda _: None)
        self._states = KvTransfer(
            model, plan, self._pool, self._runner, send=socket.send, report=lambda _: None
        )
        self._jobs: dict[int, Job] = {}
        self._compiling: dict[int, Submit] = {}
        """Requests whose grammar is not ready yet."""
        self._grammars: GrammarService | None = None
        self._pictures: PictureReader | None = None
        self._unread: dict[int, Job] = {}
        """Those with a picture whose rows are not there."""
        self._nan_guard = NanGuard()
        self._step_s = 0.0
        self._foreground_s = 0.0
        """What the steps beside the one in the background took."""

    def run(self, inbox: Inbox, pictures: PictureReader | None = None) -> None:
        """Step for ever, taking in what arrived between steps."""
        self._pictures = pictures
        self._hot = HotPrefixes(open_disk_cache(self._plan, self._model), self._pool, self._runner, inbox.put)
        self._states = KvTransfer(
            self._model, self._plan, self._pool, self._runner, send=self._socket.send, report=inbox.put
        )
        self._grammars = GrammarService(self._model, inbox.put, self._compiling)
        while True:
            self._take_in(inbox, is_blocking=self._scheduler.is_idle)
            began_s = monotonic()
            step = self._scheduler.plan(began_s)
            if self._unread:
                self._have_read()
            if step is None:
                self._wait(inbox)
            elif step.is_background:
                self._foreground_s = 0.0
                self._runner.run_in_background(
                    step, self._pool, self._sequences(step), self._draws(step), inbox.put
                )
            else:
                rows = self._runner.run(step, self._pool, self._sequences(step), self._draws(step))
                self._conclude(step, rows, monotonic() - began_s)
                elapsed_s = monotonic() - began_s
                self._foreground_s += elapsed_s
                self._step_s += elapsed_s

    def _wait(self, inbox: Inbox) -> None:
        if not self._scheduler.is_idle:
            pause_s = max(self._scheduler.resume_s - monotonic(), 0.0) or _STALL_S
            try:
                self._handle(inbox.get(timeout=pause_s))
            except Empty:
                return

    def _take_in(self, inbox: Inbox, *, is_blocking: bool) -> None:
        if is_blocking:
            self._handle(inbox.get())
        while not inbox.empty():
            self._handle(inbox.get())

    def _handle(self, item: _InboxItem) -> None:
        match item:
            case Submit(grammar=str(grammar)):
                assert self._grammars is not None
                self._compiling[item.id] = item
                try:
                    self._grammars.ask(item.id, grammar, item.tenant)
                except Overloaded as error:
                    self._take_matcher(GrammarOutcome(item.id, None, error))
            case Submit():
                self._begin(item)
            case GrammarOutcome():
                self._take_matcher(item)
            case LoadedPrefix():
                self._schedule(self._hot.take_in(item))
            case SaveKv() | LoadKv():
                self._states.ask(item)
            case KvTransferResult():
                self._states.take_in(item)
            case PictureRead():
                self._show(item)
            case StopWorker(keep_s=keep_s):
                self._hot.keep(keep_s)
                os._exit(0)
            case Abort(id=number):
                self._compiling.pop(number, None)
                self._end(number)
                self._socket.send(SequenceGone(number))
                if self._scheduler.is_idle:
                    self._socket.send(Stepped([], self._load()))
            case BackgroundStep(step=step, elapsed_s=elapsed_s):
                rows = self._runner.collect(item)
                self._step_s += elapsed_s
                # While the foreground computed, the background hardly did: that time says nothing about it.
                self._conclude(step, rows, max(elapsed_s - self._foreground_s, 0.0))
                self._states.go_on()

    def _take_matcher(self, outcome: GrammarOutcome) -> None:
        submit = self._compiling.pop(outcome.id, None)
        error = outcome.error
        if submit is None:
            return  # it was given up while its grammar was compiled
        if error is None:
            self._begin(submit, outcome.matcher)
            return
        end = SequenceEnd("failed", 0, None, 0.0, 0.0, 0.0, error.message, error.code)
        self._socket.send(Stepped([SequenceUpdate(outcome.id, end=end)], self._load()))

    def _begin(self, submit: Submit, matcher: GrammarMatcher | None = None) -> None:
        images = self._images_of(submit)
        if images is None:
            end = SequenceEnd("failed", 0, None, 0.0, 0.0, 0.0, _NO_ROOM, Overloaded.code)
            self._socket.send(Stepped([SequenceUpdate(submit.id, end=end)], self._load()))
            return
        job = Job(
            submit,
            self._model,
            self._vocabulary,
            monotonic(),
            matcher,
            readout=merged(submit.readout_ranges, self._plan.context) if self._concepts is not None else (),
            reads_outputs=self._runner.reads_outputs,
            samples_in_graph=self._plan.samples_in_graph and not self._plan.faults,
            images=images,
        )
        if not self._runner.has_variant(job.sequence.variant):
            # The server asks only for what it was told of; a pack was changed while a worker was restarted.
            self._free(job)
            end = SequenceEnd(
                "failed", 0, None, 0.0, 0.0, 0.0, "The model's concepts have changed; reload it."
            )
            self._socket.send(Stepped([SequenceUpdate(submit.id, end=end)], self._load()))
            return
        self._jobs[job.id] = job
        for picture, rows in job.rows():
            self._runner.show(job.id, picture.start, rows)
        if not all(picture.is_ready for picture in job.sequence.pictures):
            self._unread[job.id] = job
        self._schedule(self._hot.enter(job.sequence))

    # Pictures

    def _images_of(self, submit: Submit) -> tuple[KeptPicture, ...] | None:
        """The images that a request names, kept for it; None where one has gone."""
        found: list[KeptPicture] = []
        for _, digest in submit.images:
            assert self._pictures is not None
            image = self._pictures.use(submit.tenant, digest)
            if image is None:
                for each in found:
                    self._pictures.leave(each)
                return None
            found.append(image)
        return tuple(found)

    def _have_read(self) -> None:
        """Have those pictures read that somebody needs who runs."""
        assert self._pictures is not None
        for job in self._unread.values():
            for picture in self._scheduler.awaits(job.sequence):
                self._pictures.read(job.image_of(picture))

    def _show(self, read: PictureRead) -> None:
        """Let those go on who waited for a picture, or end them with what is wrong with it."""
        for job in [job for job in self._unread.values() if read.kept in job.images]:
            if read.error is not None:
                code = read.error.code if isinstance(read.error, Overloaded | InvalidValue) else None
                end = SequenceEnd("failed", 0, None, 0.0, 0.0, 0.0, read.error.message, code)
                self._end(job.id)
                self._socket.send(Stepped([SequenceUpdate(job.id, end=end)], self._load()))
                continue
            for picture, rows in job.rows():
                if not picture.is_ready:
                    picture.is_ready = True
                    self._runner.show(job.id, picture.start, rows)
            if all(picture.is_ready for picture in job.sequence.pictures):
                del self._unread[job.id]

    def _free(self, job: Job) -> None:
        """Give back what a job holds."""
        self._unread.pop(job.id, None)
        self._runner.forget(job.id, job.draw)
        for image in job.images:
            assert self._pictures is not None
            self._pictures.leave(image)
        job.free()

    def _schedule(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if sequence.id in self._jobs:  # else it was given up while its prefix was read
                self._scheduler.add(sequence)

    def _end(self, number: int, *, is_sound: bool = True) -> None:
        job = self._jobs.pop(number, None)
        if job is not None:
            self._scheduler.remove(number, is_sound=is_sound)
            self._free(job)

    def _sequences(self, step: Step) -> dict[int, Sequence]:
        return {chunk.sequence: self._jobs[chunk.sequence].sequence for chunk in step.chunks}

    def _draws(self, step: Step) -> dict[int, GraphDraw | None]:
        return {chunk.sequence: self._jobs[chunk.sequence].draw for chunk in step.chunks}

    def _conclude(self, step: Step, rows: dict[int, int], elapsed_s: float) -> None:
        """Sample from a step's logits, commit it, and report it to the server."""
        now_s = monotonic()
        context = self._runner.context(step.kv_context)
        sampled: dict[int, int] = {}
        updates: list[SequenceUpdate] = []
        sane: list[tuple[int, bool]] = []
        for chunk, first_row in zip(step.chunks, step.first_rows(), strict=True):
            job = self._jobs.get(chunk.sequence)
            if job is None:
                continue  # it was given up while the step ran in the background
            row = rows.get(job.id)
            if not job.is_announced:
                job.is_announced = True
                started = job.sequence.prompt_tokens, job.sequence.cached_tokens
                updates.append(SequenceUpdate(job.id, started=started, scored=self._scored_first(job)))
            if chunk.logit_spans or chunk.readout:
                update = self._records_of(job, chunk, step.kv_context, first_row, now_s)
                updates += [update] if update.scored or update.end is not None else []
                if update.end is not None or row is None:
                    sane += self._evidence(job, is_sound=update.end is None)
                if update.end is not None:
                    continue
            if row is None:
                updates.append(job.read(chunk.start + chunk.count, now_s))
                continue
            if self._plan.faults:
                generated = job.sequence.generated_tokens
                inject_faults(self._plan.faults, job.sequence.tokens, generated, context.logits(row).fill)
            token, update = job.take(context, row, self._plan.context, now_s)
            updates.append(update)
            sane += self._evidence(job, is_sound=_is_sound(update))
            if token is not None:
                sampled[job.id] = token
        self._nan_guard.check(sane)
        self._scheduler.commit(step, sampled, elapsed_s)
        for update in updates:
            if update.end is not None:
                self._end(update.id, is_sound=_is_sound(update))
        self._socket.send(Stepped(updates, self._load()))

    def _evidence(self, job: Job, *, is_sound: bool) -> list[tuple[int, bool]]:
        """What a row says about the device: no number says nothing, where vectors or KV are a client's."""
        is_own = not job.is_steered and not self._states.came_from_outside(job.sequence.salt)
        return [(job.prompt_hash, is_sound)] if is_sound or is_own else []

    def _scored_first(self, job: Job) -> list[TokenRecord]:
        return [self._scorer.unscored(job.sequence.tokens[0], 0)] if job.scores_first else []

    def _records_of(
        self, job: Job, chunk: Chunk, kv_context: int, first_row: int, now_s: float
    ) -> SequenceUpdate:
        """The records of a chunk: logprobs of the tokens after its positions, readouts of its own."""
        try:
            scored = self._score(job, chunk, kv_context, first_row)
            return job.note(scored, self._readouts(chunk, kv_context, first_row))
        except NotANumber as error:
            return job.fail(error, now_s)

    def _score(self, job: Job, chunk: Chunk, kv_context: int, first_row: int) -> list[TokenRecord]:
        records: list[TokenRecord] = []
        for start, end in job.scoring_spans(chunk):
            logits = self._runner.context(kv_context).logits_of(first_row + start - chunk.start, end - start)
            scored = job.sequence.tokens[start + 1 : end + 1]
            records += self._scorer.score(logits, scored, start + 1, job.score_top)
        return records

    def _readouts(self, chunk: Chunk, kv_context: int, first_row: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for start, end in chunk.readout:
            values = self._runner.readouts(kv_context, first_row + start - chunk.start, end - start)
            if not np.isfinite(values).all():
                raise NotANumber("The model's residual stream is not a number; it cannot be read out.")
            found += ((position, row.tobytes()) for position, row in enumerate(values, start))
        return found

    def _load(self) -> WorkerLoad:
        return WorkerLoad(
            running=self._scheduler.running,
            waiting=self._scheduler.waiting + self._hot.waiting,
            kv_used=self._pool.used_cells,
            step_s=self._step_s,
            native_s=self._runner.native_s,
        )


def _is_sound(update: SequenceUpdate) -> bool:
    """Whether what was computed can be trusted: a request's own fault says nothing against it."""
    return update.end is None or update.end.error is None or update.end.code is not None
