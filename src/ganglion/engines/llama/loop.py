"""The step loop over one loaded model: what the scheduler decides is run, sampled, told and committed."""

import os
from queue import Empty, SimpleQueue
from time import monotonic

import numpy as np

from ganglion.core.errors import Overloaded
from ganglion.engines.concept_pack import ConceptBook
from ganglion.engines.ipc import (
    Abort,
    End,
    Gone,
    Load,
    LoadKv,
    SaveKv,
    Stepped,
    Stop,
    Submit,
    TokenRecord,
    Update,
)
from ganglion.engines.llama.faults import strike
from ganglion.engines.llama.guide import Guide, Guided, Guides
from ganglion.engines.llama.hot import HotPrefixes, Recalled, open_shelf
from ganglion.engines.llama.job import Job, Vocabulary
from ganglion.engines.llama.kv_states import Judged, KvStates
from ganglion.engines.llama.line import Line
from ganglion.engines.llama.native_model import NativeModel
from ganglion.engines.llama.plan import LARGEST_CHUNK, EnginePlan, output_rows
from ganglion.engines.llama.runner import Aside, Runner
from ganglion.engines.llama.sampling import NotANumber
from ganglion.engines.llama.sanity import Sanity
from ganglion.engines.llama.scoring import Scorer
from ganglion.scheduler.exactness import BY_TILES, Cut
from ganglion.scheduler.pace import Pace
from ganglion.scheduler.pool import KvPool, PoolShape
from ganglion.scheduler.scheduler import Chunk, Scheduler, Step
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.spans import merged

Item = Submit | Abort | SaveKv | LoadKv | Judged | Stop | Aside | Recalled | Guided
Inbox = SimpleQueue[Item]
"""What the main thread takes in between steps. Bounded by the requests that the server lets in at once."""

RUN_TOKENS = 8
"""On a GPU, between a large model on a small one (3) and a small one on a large one (26)."""
STALL_S = 0.05
"""How long to wait for news when sequences wait and none can run."""


class Loop:
    """The step loop over one loaded model."""

    def __init__(
        self, model: NativeModel, plan: EnginePlan, line: Line, book: ConceptBook | None = None
    ) -> None:
        self._model = model
        self._plan = plan
        self._line = line
        self._book = book
        self._runner = Runner(model, plan, book)
        self._vocabulary = Vocabulary(model)
        shape = PoolShape(
            plan.lanes,
            plan.parked_tokens,
            can_trim=model.can_trim,
            can_move=model.has_one_cache,
            run_tokens=RUN_TOKENS if plan.gpu_layers else 0,
        )
        self._pool = KvPool(shape)
        self._scheduler = Scheduler(
            self._pool,
            Pace(plan.step_s, LARGEST_CHUNK, plan.largest_aside),
            context=plan.context,
            parallel=plan.parallel,
            is_deterministic=plan.is_deterministic,
            most_rows=output_rows(model.vocabulary_size),
            exact_cut=Cut(LARGEST_CHUNK) if plan.gpu_layers else BY_TILES,
        )
        self._scorer = Scorer(self._vocabulary, model.vocabulary_size)
        self._hot = HotPrefixes(None, self._pool, self._runner, lambda _: None)
        self._states = KvStates(model, plan, self._pool, self._runner, send=line.send, report=lambda _: None)
        self._jobs: dict[int, Job] = {}
        self._compiling: dict[int, Submit] = {}
        """Requests whose grammar is not ready yet."""
        self._guides: Guides | None = None
        self._sanity = Sanity()
        self._step_s = 0.0
        self._foreground_s = 0.0
        """What the steps beside the one in the background took."""

    def run(self, inbox: Inbox) -> None:
        """Step for ever, taking in what arrived between steps."""
        self._hot = HotPrefixes(open_shelf(self._plan, self._model), self._pool, self._runner, inbox.put)
        self._states = KvStates(
            self._model, self._plan, self._pool, self._runner, send=self._line.send, report=inbox.put
        )
        self._guides = Guides(self._model, inbox.put, self._compiling)
        while True:
            self._take_in(inbox, is_blocking=self._scheduler.is_idle)
            began_s = monotonic()
            step = self._scheduler.plan(began_s)
            if step is None:
                self._wait(inbox)
            elif step.is_aside:
                self._foreground_s = 0.0
                self._runner.run_aside(step, self._pool, self._sequences(step), inbox.put)
            else:
                rows = self._runner.run(step, self._pool, self._sequences(step))
                self._conclude(step, rows, monotonic() - began_s)
                elapsed_s = monotonic() - began_s
                self._foreground_s += elapsed_s
                self._step_s += elapsed_s

    def _wait(self, inbox: Inbox) -> None:
        if not self._scheduler.is_idle:
            pause_s = max(self._scheduler.resume_s - monotonic(), 0.0) or STALL_S
            try:
                self._handle(inbox.get(timeout=pause_s))
            except Empty:
                return

    def _take_in(self, inbox: Inbox, *, is_blocking: bool) -> None:
        if is_blocking:
            self._handle(inbox.get())
        while not inbox.empty():
            self._handle(inbox.get())

    def _handle(self, item: Item) -> None:
        match item:
            case Submit(grammar=str(grammar)):
                assert self._guides is not None
                self._compiling[item.id] = item
                try:
                    self._guides.ask(item.id, grammar, item.tenant)
                except Overloaded as error:
                    self._take_guide(Guided(item.id, None, error))
            case Submit():
                self._begin(item)
            case Guided():
                self._take_guide(item)
            case Recalled():
                self._schedule(self._hot.take_in(item))
            case SaveKv() | LoadKv():
                self._states.ask(item)
            case Judged():
                self._states.take_in(item)
            case Stop(keep_s=keep_s):
                self._hot.keep(keep_s)
                os._exit(0)
            case Abort(id=number):
                self._compiling.pop(number, None)
                self._end(number)
                self._line.send(Gone(number))
                if self._scheduler.is_idle:
                    self._line.send(Stepped([], self._load()))
            case Aside(step=step, elapsed_s=elapsed_s):
                rows = self._runner.collect(item)
                self._step_s += elapsed_s
                # While the foreground computed, the background hardly did: that time says nothing about it.
                self._conclude(step, rows, max(elapsed_s - self._foreground_s, 0.0))
                self._states.go_on()

    def _take_guide(self, guided: Guided) -> None:
        submit = self._compiling.pop(guided.id, None)
        error = guided.error
        if submit is None:
            return  # it was given up while its grammar was compiled
        if error is None:
            self._begin(submit, guided.guide)
            return
        end = End("failed", 0, None, 0.0, 0.0, 0.0, error.message, error.code)
        self._line.send(Stepped([Update(guided.id, end=end)], self._load()))

    def _begin(self, submit: Submit, guide: Guide | None = None) -> None:
        job = Job(
            submit,
            self._model,
            self._vocabulary,
            monotonic(),
            guide,
            readout=merged(submit.readout_ranges, self._plan.context) if self._book is not None else (),
            reads_outputs=self._runner.reads_outputs,
        )
        if not self._runner.can_steer(job.sequence.steering):
            # The server asks only for what it was told of; a pack was changed while a worker was restarted.
            job.free()
            end = End("failed", 0, None, 0.0, 0.0, 0.0, "The model's concepts have changed; load it anew.")
            self._line.send(Stepped([Update(submit.id, end=end)], self._load()))
            return
        self._jobs[job.id] = job
        self._schedule(self._hot.enter(job.sequence))

    def _schedule(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if sequence.id in self._jobs:  # else it was given up while its prefix was read
                self._scheduler.add(sequence)

    def _end(self, number: int, *, is_sound: bool = True) -> None:
        job = self._jobs.pop(number, None)
        if job is not None:
            self._scheduler.remove(number, is_sound=is_sound)
            job.free()

    def _sequences(self, step: Step) -> dict[int, Sequence]:
        return {chunk.sequence: self._jobs[chunk.sequence].sequence for chunk in step.chunks}

    def _conclude(self, step: Step, rows: dict[int, int], elapsed_s: float) -> None:
        """Sample from a step's logits, commit it, and tell the server."""
        now_s = monotonic()
        context = self._runner.lane(step.lane)
        sampled: dict[int, int] = {}
        updates: list[Update] = []
        sane: list[tuple[int, bool]] = []
        for chunk, first_row in zip(step.chunks, step.first_rows(), strict=True):
            job = self._jobs.get(chunk.sequence)
            if job is None:
                continue  # it was given up while the step ran in the background
            row = rows.get(job.id)
            if not job.is_announced:
                job.is_announced = True
                started = job.sequence.prompt_tokens, job.sequence.cached_tokens
                updates.append(Update(job.id, started=started, scored=self._scored_first(job)))
            if chunk.wanted or chunk.readout:
                told = self._tell(job, chunk, step.lane, first_row, now_s)
                updates += [told] if told.scored or told.end is not None else []
                if told.end is not None or row is None:
                    sane += self._evidence(job, is_sound=told.end is None)
                if told.end is not None:
                    continue
            if row is None:
                updates.append(job.read(chunk.start + chunk.count, now_s))
                continue
            if self._plan.faults:
                generated = job.sequence.generated_tokens
                strike(self._plan.faults, job.sequence.tokens, generated, context.logits(row).fill)
            token, update = job.take(context, row, self._plan.context, now_s)
            updates.append(update)
            sane += self._evidence(job, is_sound=_is_sound(update))
            if token is not None:
                sampled[job.id] = token
        self._sanity.check(sane)
        self._scheduler.commit(step, sampled, elapsed_s)
        for update in updates:
            if update.end is not None:
                self._end(update.id, is_sound=_is_sound(update))
        self._line.send(Stepped(updates, self._load()))

    def _evidence(self, job: Job, *, is_sound: bool) -> list[tuple[int, bool]]:
        """What a row says about the device: no number says nothing, where vectors or KV are a client's."""
        is_own = not job.sequence.steering and not self._states.came_from_outside(job.sequence.salt)
        return [(job.prompt_hash, is_sound)] if is_sound or is_own else []

    def _scored_first(self, job: Job) -> list[TokenRecord]:
        return [self._scorer.unscored(job.sequence.tokens[0], 0)] if job.scores_first else []

    def _tell(self, job: Job, chunk: Chunk, lane: int, first_row: int, now_s: float) -> Update:
        """What a chunk says of tokens: logprobs of those it foretells, readouts of its own."""
        try:
            scored = self._score(job, chunk, lane, first_row)
            return job.note(scored, self._readouts(chunk, lane, first_row))
        except NotANumber as error:
            return job.fail(error, now_s)

    def _score(self, job: Job, chunk: Chunk, lane: int, first_row: int) -> list[TokenRecord]:
        records: list[TokenRecord] = []
        for start, end in job.foretelling(chunk):
            logits = self._runner.lane(lane).logits_of(first_row + start - chunk.start, end - start)
            foretold = job.sequence.tokens[start + 1 : end + 1]
            records += self._scorer.score(logits, foretold, start + 1, job.score_top)
        return records

    def _readouts(self, chunk: Chunk, lane: int, first_row: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for start, end in chunk.readout:
            values = self._runner.readouts(lane, first_row + start - chunk.start, end - start)
            if not np.isfinite(values).all():
                raise NotANumber("The model's residual stream is not a number; it cannot be read out.")
            found += ((start + place, row.tobytes()) for place, row in enumerate(values))
        return found

    def _load(self) -> Load:
        return Load(
            running=self._scheduler.running,
            waiting=self._scheduler.waiting + self._hot.waiting,
            kv_used=self._pool.used_cells,
            step_s=self._step_s,
            decode_s=self._runner.decode_s,
        )


def _is_sound(update: Update) -> bool:
    """Whether what was computed can be trusted: a request's own fault says nothing against it."""
    return update.end is None or update.end.error is None or update.end.code is not None
