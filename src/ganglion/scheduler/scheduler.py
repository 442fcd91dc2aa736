"""Decides what runs next: continuous batching with chunked prefill, priorities and preemption.

Law: a sequence is in exactly one of waiting, running or gone; running ones own a slot in the pool. A cycle
is one decode step for each KV context and variant that has decoding sequences, then one prefill step; each
step is one batch of one context and one variant, so that what was decoded leaves before the prefill runs.

Prompts of the shared context run in the background while nobody decodes there: a large step beside the
cycles of the private contexts, which then come at intervals so that it gets on. Until it is committed,
nothing else is planned for its context.
"""

from collections.abc import Mapping
from dataclasses import replace

from ganglion.scheduler.batch_cut import BY_TILES, BatchCut
from ganglion.scheduler.pace import Pace
from ganglion.scheduler.pictures import Pictures
from ganglion.scheduler.pool import KvPool
from ganglion.scheduler.prefill import Prefill, PrefillPlan
from ganglion.scheduler.prefix import BLOCK, common_blocks, covered
from ganglion.scheduler.prefix_catalogue import SequenceId
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.step import Chunk, Group, Step, next_chunk

_AGE_S = 10.0
"""Waiting this long makes a request one priority step more urgent, so that nothing waits for ever."""

_GROWTH = 160
"""Room for an answer that a slot is chosen with; one that grows beyond its slot moves to a larger one."""

_WORTH_WAITING = 2 * BLOCK
"""A prefix that somebody else is just computing is waited for when it saves at least this many tokens."""


class Scheduler:
    """Decides each step; `commit` tells it what came of it."""

    def __init__(
        self,
        pool: KvPool,
        pace: Pace,
        *,
        context: int,
        parallel: int,
        is_deterministic: bool = False,
        most_rows: int | None = None,
        exact_cut: BatchCut = BY_TILES,
    ) -> None:
        """`most_rows` bounds the wanted positions of one step, since each costs a row of logits."""
        self._exact_cut = exact_cut
        self._pool = pool
        self._pace = pace
        self._prefill = Prefill(pool, pace, exact_cut, most_rows)
        self._group = self._prefill.group
        self._is_deterministic = is_deterministic
        self._context = context
        self._parallel = parallel
        self._waiting: dict[SequenceId, Sequence] = {}
        self._running: dict[SequenceId, Sequence] = {}
        self._groups_due: list[Group] = []
        self._is_prefill_due = False
        self._is_turn_of_others = False
        self._cycle_began_s = 0.0
        self._cycle_s = 0.0
        self._cycle_decode_s = 0.0
        self._now_s = 0.0
        self._background: Step | None = None
        self._stuck: list[Sequence] = []
        """Decoding sequences that outgrew their slots while the shared context was in use."""
        self.resume_s = 0.0
        """When `plan` has to be called again, though nothing happened, after it gave None."""

    @property
    def waiting(self) -> int:
        """How many sequences wait for a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many sequences own a slot."""
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._waiting and not self._running

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._waiting[sequence.id] = sequence

    def remove(self, sequence: SequenceId, *, is_sound: bool = True) -> None:
        """The sequence ended, whichever way; what it computed stays cached unless it is not sound."""
        if self._running.pop(sequence, None) is not None:
            self._pool.release(sequence, is_sound=is_sound)
        else:
            self._waiting.pop(sequence, None)

    def plan(self, now_s: float) -> Step | None:
        """The next step, or None when nothing can run."""
        self._now_s = now_s
        # Three: one ends, the next admits a preempted sequence that has all its KV, the third decodes it.
        for _ in range(3):
            background = self._background_step()
            if background is not None:
                return background
            while self._groups_due:
                step = self._decode_step(self._groups_due.pop(0))
                if step is not None:
                    return step
            if self._is_prefill_due:
                self._is_prefill_due = False
                self._admit()
                step = self._prefill_step()
                if step is not None:
                    return step
            if self._background is not None:
                pause_s = self._pace.interval(self._cycle_decode_s, self._cycle_s)
                self.resume_s = self._cycle_began_s + pause_s
                if now_s < self.resume_s:
                    return None
            self._begin_cycle()
        return None

    def commit(self, step: Step, sampled: Mapping[SequenceId, int], elapsed_s: float) -> None:
        """Record a step that ran: `sampled` has a token for each chunk that wanted logits and goes on."""
        if not step.is_background:
            self._cycle_s += elapsed_s
        if step.is_decode:
            self._cycle_decode_s += elapsed_s
        else:
            work = sum(self._pace.work(chunk.count, chunk.start) for chunk in step.chunks)
            self._pace.saw_prefill(work, elapsed_s)
        for chunk in step.chunks:
            if (chunk.logit_spans or chunk.readout) and chunk.sequence in self._running:
                self._running[chunk.sequence].read_tokens = chunk.start + chunk.count
        if step.is_background:
            self._background = None
            self._pool.unlock_shared()
        else:
            self._account(step)
        for number, token in sampled.items():
            self._running[number].append(token)

    def _account(self, step: Step) -> None:
        """Tell the pool what KV the step computes; of one in the background already when it starts."""
        for chunk in step.chunks:
            sequence = self._running[chunk.sequence]
            computed = sequence.tokens[chunk.start : chunk.start + chunk.count]
            self._pool.extend(sequence.id, computed, None if step.is_decode else sequence.chain)

    def awaits(self, sequence: Sequence) -> Pictures:
        """The pictures that a running sequence has no KV of and whose rows are not there."""
        if sequence.id not in self._running:
            return ()
        held = self._pool.held(sequence.id)
        return tuple(each for each in sequence.pictures if not each.is_ready and each.end > held)

    def progress(self, sequence: SequenceId) -> tuple[int, int]:
        """How many of a running sequence's tokens have KV, of how many."""
        return self._pool.held(sequence), len(self._running[sequence].tokens)

    # One cycle

    def _begin_cycle(self) -> None:
        if self._background is None:
            self._pool.sweep()
        self._groups_due = sorted(self._decoding_groups())
        self._is_prefill_due = True
        self._pace.saw_decode(self._cycle_decode_s)
        self._cycle_began_s = self._now_s
        self._cycle_s = self._cycle_decode_s = 0.0

    def _decoding_groups(self) -> set[Group]:
        return {self._group(sequence) for sequence in self._running.values() if self._decodes(sequence)}

    def _decodes(self, sequence: Sequence) -> bool:
        is_next = sequence.generated_tokens > 0 and len(sequence.tokens) - self._pool.held(sequence.id) == 1
        return is_next and not self._is_in_background(sequence)

    def _decode_step(self, group: Group) -> Step | None:
        chunks = []
        for sequence in sorted(self._running.values(), key=self._rank):
            if sequence.id not in self._running or not self._decodes(sequence):
                continue  # preempted a moment ago
            if self._group(sequence) != group:
                continue
            if self._pool.is_stuck(sequence.id, 1):
                self._stuck.append(sequence)
                continue
            if not self._reserve(sequence, 1):
                continue
            moved = self._group(sequence)
            if moved == group:
                held = self._pool.held(sequence.id)
                chunks.append((self._pool.slot(sequence.id).index, next_chunk(sequence, held, 1)))
            elif moved not in self._groups_due:
                self._groups_due.append(moved)
        # A sequence planned above may have been preempted by a later, more urgent one's need for room.
        live = [item for item in chunks if item[1].sequence in self._running]
        if not live:
            return None
        # Slots in order: the library splits a private context's batch where slot numbers jump.
        ordered = tuple(chunk for _, chunk in sorted(live, key=lambda item: item[0]))
        kv_context, variant = group
        return Step(self._pool.take_moves(), kv_context, ordered, is_decode=True, variant=variant)

    def _background_step(self) -> Step | None:
        """The next step in the background, when there is none and the shared context has prompts only."""
        if self._background is not None or self._is_deterministic or self._pool.shared_context == 0:
            return None
        for sequence in self._stuck:
            if sequence.id in self._running:
                self._reserve(sequence, 1)
        self._stuck.clear()
        if not any(self._is_for_background(sequence) for sequence in self._running.values()):
            return None
        self._admit()
        self._pool.sweep()
        if not self._can_run_in_background():
            return None
        pending = [sequence for sequence in self._running.values() if self._is_for_background(sequence)]
        if not pending:  # who was there gave way to somebody more urgent
            return None
        # Whoever runs elsewhere may outgrow its slot, and then waits for this step.
        is_alone = len(self._running) == 1 and not self._waiting
        budget = self._pace.background_budget(is_alone=is_alone)
        pending.sort(key=self._rank)
        step = self._prefill_of(self._prefill.batch(pending, budget, self._pace.largest_background))
        if step is None:
            return None
        self._background = replace(step, is_background=True)
        self._account(self._background)
        self._pool.lock_shared()
        return self._background

    def _is_for_background(self, sequence: Sequence) -> bool:
        is_shared = self._pool.slot(sequence.id).kv_context == self._pool.shared_context
        return is_shared and not self._decodes(sequence) and self._prefill.can_go_on(sequence)

    def _can_run_in_background(self) -> bool:
        return self._pool.shared_context not in {kv_context for kv_context, _ in self._decoding_groups()}

    def _prefill_step(self) -> Step | None:
        """Fill one batch with whole prompts, or with a part of one that is too long.

        While the most urgent one is too long, the others take turns with it.
        """
        pending = [
            sequence
            for sequence in self._running.values()
            if not self._decodes(sequence) and self._prefill.can_go_on(sequence)
        ]
        if self._is_deterministic:
            if not pending:
                return None
            return self._prefill_of(self._prefill.alone(min(pending, key=self._rank)))
        if self._pool.shared_context > 0 and (self._background is not None or self._can_run_in_background()):
            pending = [sequence for sequence in pending if not self._is_for_background(sequence)]
        if not pending:
            return None
        pending.sort(key=self._rank)
        budget = self._pace.budget(is_shared_with_decode=len(pending) < len(self._running))
        self._is_turn_of_others = not self._is_turn_of_others
        if self._is_turn_of_others and self._prefill.cost(pending[0]) > budget:
            pending = [each for each in pending if self._prefill.cost(each) <= budget] or pending
        return self._prefill_of(self._prefill.batch(pending, budget, self._pace.largest_chunk))

    def _prefill_of(self, prefill: PrefillPlan) -> Step | None:
        plan, group = prefill
        chunks: list[Chunk] = []
        for sequence, count in plan:
            if sequence.id not in self._running or not self._reserve(sequence, count):
                continue
            if self._group(sequence) != group:
                continue  # it had to move; its chunk runs in a later cycle
            chunks.append(next_chunk(sequence, self._pool.held(sequence.id), count))
        live = tuple(chunk for chunk in chunks if chunk.sequence in self._running)
        if not live:
            return None
        kv_context, variant = group
        if self._pool.is_compact:
            live = tuple(sorted(live, key=lambda chunk: self._pool.slot(chunk.sequence).index))
        return Step(self._pool.take_moves(), kv_context, live, is_decode=False, variant=variant)

    # Admission and preemption

    def _aged(self, sequence: Sequence) -> int:
        """Priority with ageing; lower is sooner."""
        return sequence.priority - int((self._now_s - sequence.arrived_s) / _AGE_S)

    def _rank(self, sequence: Sequence) -> tuple[int, float]:
        return self._aged(sequence), sequence.arrived_s

    def _admit(self) -> None:
        """Give waiting sequences a slot, most urgent first, tenants in turn."""
        tenants: dict[str, int] = {}
        for sequence in self._running.values():
            tenants[sequence.salt] = tenants.get(sequence.salt, 0) + 1
        waiting = list(self._waiting.values())
        while waiting:
            best = min(
                waiting,
                key=lambda each: (self._aged(each), tenants.get(each.salt, 0), each.arrived_s),
            )
            waiting.remove(best)
            if self._waits_for_prefix(best) or self._waits_for_context(best):
                continue
            if not self._start(best):
                return
            tenants[best.salt] = tenants.get(best.salt, 0) + 1

    def _start(self, sequence: Sequence) -> bool:
        """Attach a sequence, taking the place of a strictly less urgent one when it must."""
        while True:
            if len(self._running) < self._parallel:
                cached = self._attach(sequence)
                if cached is not None:
                    break
            victim = self._victim(less_urgent_than=sequence)
            if victim is None:
                return False
            self._preempt(victim)
        del self._waiting[sequence.id]
        self._running[sequence.id] = sequence
        if sequence.admitted_s is None:
            sequence.admitted_s = self._now_s
            sequence.cached_tokens = cached
        return True

    def _attach(self, sequence: Sequence) -> int | None:
        room = self._room(sequence)
        return self._pool.attach(
            sequence.id,
            sequence.salt,
            sequence.tokens,
            sequence.chain,
            room,
            limit=self._reusable(sequence),
            exact_grain=self._exact_cut.rows if sequence.is_scored else None,
            pictures=sequence.pictures,
        )

    def _room(self, sequence: Sequence) -> int:
        remaining = sequence.max_tokens - sequence.generated_tokens
        # One that is scored stays where it began: not every model's KV can be moved out of there.
        growth = remaining if sequence.is_scored else min(remaining, _GROWTH)
        return min(len(sequence.tokens) + growth, self._context)

    def _reusable(self, sequence: Sequence) -> int:
        """How many leading tokens cached KV may stand for."""
        if not sequence.is_scored:
            return sequence.reusable
        if sequence.pictures:  # batches end where pictures do, too: only from the start are they the same
            return 0
        return self._exact_cut.reusable(sequence.reusable, len(sequence.tokens))

    def _waits_for_context(self, sequence: Sequence) -> bool:
        room = self._room(sequence)
        return self._pool.waits_for_shared_context(
            sequence.salt,
            sequence.tokens,
            sequence.chain,
            room,
            self._reusable(sequence),
            pictures=sequence.pictures,
        )

    def _waits_for_prefix(self, sequence: Sequence) -> bool:
        """Whether somebody running is about to compute a prefix that this sequence can then share."""
        if not sequence.chain:
            return False
        known: int | None = None
        reusable = self._reusable(sequence)
        for other in self._running.values():
            if other.salt != sequence.salt or not other.chain or other.chain[0] != sequence.chain[0]:
                continue
            common = min(covered(common_blocks(sequence.chain, other.chain)), reusable)
            if common <= self._pool.held(other.id):
                continue
            if known is None:
                known = self._pool.reusable(
                    sequence.salt, sequence.tokens, sequence.chain, reusable, pictures=sequence.pictures
                )
            if common >= known + _WORTH_WAITING:
                return True
        return False

    def _reserve(self, sequence: Sequence, count: int) -> bool:
        """Make room for a running sequence; the least urgent one goes back to waiting when there is none."""
        while not self._pool.reserve(sequence.id, count):
            victim = self._victim(less_urgent_than=None)
            if victim is None or victim is sequence:
                self._preempt(sequence)
                return False
            self._preempt(victim)
        return True

    def _victim(self, less_urgent_than: Sequence | None) -> Sequence | None:
        candidates = [
            each
            for each in self._running.values()
            if (less_urgent_than is None or self._aged(each) > self._aged(less_urgent_than))
            and not self._is_in_background(each)
        ]
        return max(candidates, key=self._rank, default=None)

    def _is_in_background(self, sequence: Sequence) -> bool:
        """Whether the background computes it just now, so that its slot cannot be taken."""
        step = self._background
        return step is not None and any(chunk.sequence == sequence.id for chunk in step.chunks)

    def _preempt(self, sequence: Sequence) -> None:
        del self._running[sequence.id]
        self._pool.park(sequence.id)
        sequence.preemptions += 1
        self._waiting[sequence.id] = sequence
