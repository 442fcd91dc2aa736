"""The scheduler and the pool under any interleaving, against a model of what the cells hold."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion.scheduler.pace import LONGEST_INTERVAL, Pace
from ganglion.scheduler.pool import KvPool
from ganglion.scheduler.prefix import BLOCK
from ganglion.scheduler.scheduler import Scheduler
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.slot_table import NEAR, PoolShape
from ganglion.scheduler.slots import Copy, Discard, KvContextShape, Move, Restore, Save, Share, Slot, Trim
from ganglion.scheduler.step import Step
from support.examples import examples

SHAPE = PoolShape(
    kv_contexts=(KvContextShape(3, 48, False), KvContextShape(2, 96, False), KvContextShape(4, 160, True)),
    parked_tokens=200,
)
COMPACT = PoolShape(
    kv_contexts=(
        KvContextShape(1, 96, False, is_exact=True),
        KvContextShape(5, 64, False),
        KvContextShape(4, 160, True),
    ),
    parked_tokens=200,
    is_parked=False,
    is_compact=True,
)
"""As on a GPU: all who run in one context, side by side, and nothing is parked."""

STEP_S = 0.4


class Device:
    """What the native library would hold: tokens per slot, tokens per blob."""

    def __init__(self, shape: PoolShape) -> None:
        self.shape = shape
        self.cells: dict[Slot, list[int]] = {}
        self.blobs: dict[int, list[int]] = {}
        self.field: dict[Slot, list[object]] = {}
        """The cells themselves behind each slot of the shared context, of which several slots may see one."""
        self.background: Step | None = None
        """The step in the background. Its tokens are there at once: who needs its context waits."""

    def carry_out(self, moves: tuple[Move, ...]) -> None:
        for move in moves:
            match move:
                case Trim(slot, length):
                    assert length <= len(self.cells.get(slot, []))
                    self.cells[slot] = self.cells.get(slot, [])[:length]
                    self.field[slot] = self.field.get(slot, [])[:length]
                case Share(source, target, length):
                    assert not self.cells.get(target)
                    assert length <= len(self.cells[source])
                    self.cells[target] = self.cells[source][:length]
                    self.field[target] = self.field[source][:length]
                case Copy(source, target, length):
                    is_cut = self.shape.kv_contexts[source.kv_context].is_shared
                    self._bring(self.cells[source][:length] if is_cut else self.cells[source], target, length)
                case Save(slot, blob):
                    assert blob not in self.blobs
                    self.blobs[blob] = list(self.cells[slot])
                case Restore(blob, slot, length):
                    self._bring(self.blobs[blob], slot, length)
                case Discard(blob):
                    del self.blobs[blob]

    def _bring(self, tokens: list[int], target: Slot, length: int) -> None:
        """The library reads a state whole before it is cut, through the shared context where it must."""
        assert not self.cells.get(target)
        assert length <= len(tokens)
        context = self.shape.kv_contexts[target.kv_context]
        if context.is_shared or len(tokens) > context.cells:
            assert self._field_cells() + len(tokens) <= self.shape.kv_contexts[-1].cells, "no room to read it"
        self.cells[target] = tokens[:length]
        if context.is_shared:
            self.field[target] = [object() for _ in range(length)]

    def _field_cells(self) -> int:
        return len({id(cell) for held in self.field.values() for cell in held})

    def run(self, step: Step, pool: KvPool, sequences: dict[int, Sequence]) -> None:
        assert self.background is None or self.background.kv_context != step.kv_context, (
            "a context runs one step at a time"
        )
        self.carry_out(step.moves)
        for chunk in step.chunks:
            slot = pool.slot(chunk.sequence)
            assert slot.kv_context == step.kv_context
            tokens = sequences[chunk.sequence].tokens
            held = self.cells.setdefault(slot, [])
            assert held == tokens[: chunk.start], "the cells hold exactly what precedes the chunk"
            held.extend(tokens[chunk.start : chunk.start + chunk.count])
            context = self.shape.kv_contexts[slot.kv_context]
            if context.is_shared:
                self.field.setdefault(slot, []).extend(object() for _ in range(chunk.count))
                assert self._field_cells() <= context.cells, "more cells than there are"
            else:
                assert len(held) <= context.cells


def scheduler(
    shape: PoolShape = SHAPE, context: int = 150, parallel: int = 6, *, is_deterministic: bool = False
) -> tuple[Scheduler, KvPool]:
    pool = KvPool(shape)
    subject = Scheduler(
        pool, Pace(STEP_S, 32), context=context, parallel=parallel, is_deterministic=is_deterministic
    )
    return subject, pool


def sequence(
    number: int, tokens: list[int], *, max_tokens: int = 8, priority: int = 0, salt: str = ""
) -> Sequence:
    return Sequence.new(
        number, salt=salt, tokens=tokens, max_tokens=max_tokens, priority=priority, arrived_s=float(number)
    )


def drive(
    subject: Scheduler, pool: KvPool, device: Device, sequences: dict[int, Sequence], now_s: float
) -> Step | None:
    """Run the next step, or commit the one in the background when no other can run before it."""
    step = subject.plan(now_s)
    if step is None:
        step, device.background = device.background, None
        if step is not None:
            conclude(subject, step, sequences)
        return step
    device.run(step, pool, sequences)
    if step.is_background:
        device.background = step
    else:
        conclude(subject, step, sequences)
    return step


def conclude(subject: Scheduler, step: Step, sequences: dict[int, Sequence]) -> None:
    sampled = {}
    ended = []
    for chunk in step.chunks:
        if chunk.wants_logits and chunk.sequence in sequences:
            one = sequences[chunk.sequence]
            if one.generated_tokens + 1 >= one.max_tokens or len(one.tokens) + 1 >= 150:
                ended.append(one.id)
            else:
                sampled[one.id] = 1000 + len(one.tokens)
    subject.commit(step, sampled, 0.01 * step.tokens)
    for number in ended:
        subject.remove(number)
        del sequences[number]


PROMPTS = st.tuples(st.integers(0, 3), st.integers(1, 120)).map(
    lambda pair: [pair[0]] * (pair[1] // 2) + list(range(pair[1] - pair[1] // 2))
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), PROMPTS, st.integers(1, 60), st.integers(-1, 1), st.sampled_from(["", "tenant"])
        ),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("background")),
        st.tuples(st.just("hot")),
        st.tuples(st.just("adopt"), PROMPTS, st.sampled_from(["", "tenant"])),
        st.tuples(st.just("abort"), st.integers(0, 30)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("shape", [pytest.param(SHAPE, id="processor"), pytest.param(COMPACT, id="gpu")])
@settings(max_examples=examples(300))
@given(ACTIONS)
def test_any_interleaving_computes_every_sequence_from_its_own_tokens_and_loses_none(shape, actions):
    subject, pool = scheduler(shape)
    device = Device(shape)
    sequences: dict[int, Sequence] = {}
    now_s, number = 0.0, 0
    for action in actions:
        now_s += 1.0
        if action[0] == "add":
            _, tokens, max_tokens, priority, salt = action
            sequences[number] = sequence(number, tokens, max_tokens=max_tokens, priority=priority, salt=salt)
            subject.add(sequences[number])
            number += 1
        elif action[0] == "step":
            for _ in range(action[1]):
                drive(subject, pool, device, sequences, now_s)
        elif action[0] == "background":
            if device.background is not None:
                step, device.background = device.background, None
                conclude(subject, step, sequences)
        elif action[0] == "hot":
            check_hot(pool, device)
        elif action[0] == "adopt":
            blob = pool.adopt(action[2], action[1])
            assert blob not in device.blobs
            device.blobs[blob] = list(action[1])
        elif action[1] in sequences:
            subject.remove(action[1])
            del sequences[action[1]]
        assert subject.running + subject.waiting == len(sequences)
    for _ in range(20_000):
        if not sequences:
            break
        now_s += 0.1
        assert drive(subject, pool, device, sequences, now_s) is not None, "somebody can always run"
    assert not sequences
    assert subject.is_idle
    check_hot(pool, device)
    assert sum(len(blob) for blob in device.blobs.values()) == pool.parked_tokens <= shape.parked_tokens
    private = sum(len(held) for slot, held in device.cells.items() if is_private(shape, slot))
    assert private <= pool.used_cells <= pool.total_cells


def is_private(shape: PoolShape, slot: Slot) -> bool:
    context = shape.kv_contexts[slot.kv_context]
    return not context.is_shared and not context.is_exact


def test_those_who_run_lie_side_by_side_and_in_order():
    subject, pool = scheduler(COMPACT)
    device = Device(COMPACT)
    sequences = {n: sequence(n, [n + 50] * (20 - n), max_tokens=20) for n in range(4)}
    for each in list(sequences.values()):
        subject.add(each)
    while sequences:
        step = subject.plan(0.0)
        assert step is not None
        slots = [pool.slot(chunk.sequence).index for chunk in step.chunks]
        assert slots == sorted(slots)
        device.run(step, pool, sequences)
        conclude(subject, step, sequences)
    assert not device.blobs, "who gives way is forgotten"


def test_a_newcomer_takes_a_slot_near_those_who_run_and_not_the_one_idle_for_longest():
    shape = PoolShape(
        (KvContextShape(80, 64, False), KvContextShape(2, 160, True)), 0, is_parked=False, is_compact=True
    )
    subject, pool = scheduler(shape, parallel=80)
    device = Device(shape)
    sequences = {n: sequence(n, [n] * 20, max_tokens=1) for n in range(80)}
    for each in list(sequences.values()):
        subject.add(each)
    run_until(subject, pool, device, sequences, lambda: not sequences)
    for number, tokens in ((100, [70] * 22), (101, [900] * 20)):
        sequences[number] = sequence(number, tokens, max_tokens=8)
        subject.add(sequences[number])
        run_until(subject, pool, device, sequences, lambda count=number - 99: subject.running == count)
    assert sequences[100].cached_tokens == 20
    assert 0 < abs(pool.slot(100).index - pool.slot(101).index) <= NEAR


def check_hot(pool: KvPool, device: Device) -> None:
    """What is called hot is held as it says."""
    device.carry_out(pool.take_moves())
    for each in pool.hot():
        held = device.cells[each.source] if isinstance(each.source, Slot) else device.blobs[each.source]
        assert tuple(held) == each.tokens
        assert len(each.tokens) >= BLOCK


def run_until(subject, pool, device, sequences, condition, limit=1000):
    for count in range(limit):
        if condition():
            return count
        assert drive(subject, pool, device, sequences, float(count)) is not None
    raise AssertionError("never happened")


def test_requests_that_arrive_together_prefill_their_common_prefix_once():
    shape = PoolShape(kv_contexts=(KvContextShape(8, 1000, True),), parked_tokens=0)
    subject, pool = scheduler(shape)
    device = Device(shape)
    prefix = list(range(96))
    sequences = {n: sequence(n, [*prefix, 500 + n, 600 + n]) for n in range(4)}
    for each in sequences.values():
        subject.add(each)
    prefilled = 0
    while any(each.generated_tokens == 0 for each in sequences.values()):
        step = drive(subject, pool, device, sequences, 0.0)
        assert step is not None
        prefilled += 0 if step.is_decode else step.tokens
    assert prefilled == 98 + 3 * 2
    assert [each.cached_tokens for each in sequences.values()] == [0, 96, 96, 96]


def test_another_tenant_never_finds_a_cached_prefix():
    subject, pool = scheduler()
    device = Device(SHAPE)
    sequences = {0: sequence(0, list(range(40)))}
    subject.add(sequences[0])
    run_until(subject, pool, device, sequences, lambda: not sequences)
    sequences[1] = sequence(1, list(range(40)), salt="other")
    sequences[2] = sequence(2, list(range(40)))
    subject.add(sequences[1])
    subject.add(sequences[2])
    one, two = sequences[1], sequences[2]
    run_until(subject, pool, device, sequences, lambda: not sequences)
    assert (one.cached_tokens, two.cached_tokens) == (0, 39)


def test_what_is_hot_comes_back_in_another_pool_for_its_own_tenant_only():
    first, first_pool = scheduler()
    device = Device(SHAPE)
    sequences = {
        0: sequence(0, list(range(40)), max_tokens=4),
        1: sequence(1, [7] * 30, max_tokens=4, salt="tenant"),
        2: sequence(2, list(range(20)), max_tokens=1),
    }
    conversation = sequences[0]
    for number in (2, 0, 1):
        first.add(sequences[number])
        run_until(first, first_pool, device, sequences, lambda number=number: number not in sequences)
    device.carry_out(first_pool.take_moves())
    hot = first_pool.hot()
    assert [(each.salt, len(each.tokens)) for each in hot] == [("tenant", 33), ("", 43)], "newest first"
    second, second_pool = scheduler()
    fresh = Device(SHAPE)
    for each in reversed(hot):
        fresh.blobs[second_pool.adopt(each.salt, each.tokens)] = list(each.tokens)
    sequences = {
        10: sequence(10, [*conversation.tokens, 5, 5]),
        11: sequence(11, [*conversation.tokens, 5, 5], salt="tenant"),
        12: sequence(12, [7] * 40, salt="tenant"),
    }
    found = dict(sequences)
    for each in sequences.values():
        second.add(each)
    run_until(second, second_pool, fresh, sequences, lambda: not sequences)
    assert [found[number].cached_tokens for number in (10, 11, 12)] == [43, 0, 30]


def test_more_than_may_be_parked_is_adopted_at_the_cost_of_the_oldest():
    pool = KvPool(SHAPE)
    device = Device(SHAPE)
    for number in range(5):
        device.blobs[pool.adopt("", [number] * 60)] = [number] * 60
    device.carry_out(pool.take_moves())
    assert [each.tokens[0] for each in pool.hot()] == [4, 3, 2]
    assert len(device.blobs) == 3


def test_what_came_out_wrong_is_not_found_again():
    subject, pool = scheduler()
    device = Device(SHAPE)
    sequences = {0: sequence(0, list(range(40)), max_tokens=100)}
    subject.add(sequences[0])
    run_until(subject, pool, device, sequences, lambda: sequences[0].generated_tokens > 2)
    subject.remove(0, is_sound=False)
    again = sequence(1, list(range(40)))
    sequences = {1: again}
    subject.add(again)
    run_until(subject, pool, device, sequences, lambda: not sequences)
    assert again.cached_tokens == 0


def test_a_follow_up_turn_reuses_the_conversation_even_after_it_was_parked():
    shape = PoolShape(kv_contexts=SHAPE.kv_contexts, parked_tokens=1000)
    subject, pool = scheduler(shape)
    device = Device(shape)
    sequences = {0: sequence(0, list(range(40)))}
    first = sequences[0]
    subject.add(first)
    run_until(subject, pool, device, sequences, lambda: not sequences)
    for number in range(1, 12):  # enough others to take every private slot
        sequences[number] = sequence(number, [number + 50] * 30, max_tokens=4)
        subject.add(sequences[number])
    run_until(subject, pool, device, sequences, lambda: not sequences)
    follow_up = sequence(99, [*first.tokens, 7, 7, 7])
    sequences[99] = follow_up
    subject.add(follow_up)
    run_until(subject, pool, device, sequences, lambda: not sequences)
    assert follow_up.cached_tokens == len(first.tokens)
    assert device.blobs


@pytest.mark.parametrize("length", [4, 8, 15, 16, 17])
def test_a_short_list_that_goes_on_is_not_computed_again(length):
    subject, pool = scheduler()
    device, sequences = Device(SHAPE), {0: sequence(0, list(range(length)), max_tokens=1)}
    subject.add(sequences[0])
    run_until(subject, pool, device, sequences, lambda: not sequences)
    for number, tokens, cached in (
        (1, [*range(length), 7, 7, 7], length),
        (2, [*range(length), 7, 7, 7], length + 2),
        (3, list(range(length)), length - 1 if length > 4 else 0),
    ):
        one = sequences[number] = sequence(number, tokens, max_tokens=1)
        subject.add(one)
        run_until(subject, pool, device, sequences, lambda: not sequences)
        assert one.cached_tokens == cached
    assert not device.blobs


def test_the_first_words_that_all_prompts_share_are_computed_and_not_carried_from_a_stranger():
    subject, pool = scheduler()
    device, moves = Device(SHAPE), []
    sequences = {n: sequence(n, [*range(10), *[50 + n] * 40], max_tokens=2) for n in range(8)}
    for one in list(sequences.values()):
        subject.add(one)
    while sequences:
        step = drive(subject, pool, device, sequences, 0.0)
        assert step is not None
        moves += step.moves
    assert not [move for move in moves if isinstance(move, Copy | Restore | Share)]
    for number in range(60):  # short ones are dropped, not parked, when their slots are needed
        sequences[number] = sequence(number, [900 + number] * 5, max_tokens=1)
        subject.add(sequences[number])
        run_until(subject, pool, device, sequences, lambda: not sequences)
    assert all(len(tokens) >= BLOCK for tokens in device.blobs.values())


def test_an_urgent_request_takes_the_place_of_a_less_urgent_one_which_still_finishes():
    shape = PoolShape(kv_contexts=(KvContextShape(1, 160, True),), parked_tokens=160)
    subject, pool = scheduler(shape, parallel=1)
    device = Device(shape)
    slow = sequence(0, list(range(30)), max_tokens=50, priority=1)
    sequences = {0: slow}
    subject.add(slow)
    run_until(subject, pool, device, sequences, lambda: slow.generated_tokens > 5)
    urgent = sequence(1, list(range(100, 130)), max_tokens=3, priority=0)
    sequences[1] = urgent
    subject.add(urgent)
    run_until(subject, pool, device, sequences, lambda: 1 not in sequences)
    assert 0 in sequences
    assert slow.preemptions == 1
    run_until(subject, pool, device, sequences, lambda: not sequences)


def test_an_urgent_short_request_takes_the_place_of_a_long_prompt_that_is_read_in_the_background():
    shape = PoolShape(
        kv_contexts=(KvContextShape(2, 64, False), KvContextShape(2, 160, True)), parked_tokens=160
    )
    subject, pool = scheduler(shape, parallel=1)
    device = Device(shape)
    sequences = {0: sequence(0, list(range(140)), max_tokens=4, priority=1)}
    subject.add(sequences[0])
    run_until(subject, pool, device, sequences, lambda: device.background is not None)
    sequences[1] = sequence(1, list(range(500, 510)), max_tokens=3, priority=0)
    subject.add(sequences[1])
    run_until(subject, pool, device, sequences, lambda: 1 not in sequences)
    assert sequences[0].preemptions == 1
    run_until(subject, pool, device, sequences, lambda: not sequences)


def test_a_preempted_sequence_that_has_all_its_kv_decodes_at_once_when_it_comes_back():
    shape = PoolShape(kv_contexts=(KvContextShape(1, 160, True),), parked_tokens=160)
    subject, pool = scheduler(shape, parallel=1)
    device = Device(shape)
    slow = sequence(0, list(range(30)), max_tokens=50, priority=1)
    sequences = {0: slow}
    subject.add(slow)
    run_until(subject, pool, device, sequences, lambda: slow.generated_tokens > 5)
    sequences[1] = sequence(1, list(range(100, 116)), max_tokens=1, priority=0)
    subject.add(sequences[1])
    run_until(subject, pool, device, sequences, lambda: 1 not in sequences)  # ends with its prefill
    step = drive(subject, pool, device, sequences, 0.0)
    assert step is not None
    assert step.is_decode


def test_a_long_prompt_is_cut_into_chunks_while_others_decode_in_its_lane():
    shape = PoolShape(kv_contexts=(KvContextShape(4, 160, True),), parked_tokens=0)
    subject, pool = scheduler(shape)
    device = Device(shape)
    sequences = {0: sequence(0, list(range(10)), max_tokens=40)}
    subject.add(sequences[0])
    run_until(subject, pool, device, sequences, lambda: sequences[0].generated_tokens > 3)
    sequences[1] = sequence(1, list(range(140)), max_tokens=4)
    subject.add(sequences[1])
    kinds = []
    while sequences.get(1) is not None and sequences[1].generated_tokens == 0:
        step = drive(subject, pool, device, sequences, 0.0)
        assert step is not None
        kinds.append(step.is_decode)
    assert kinds.count(False) >= 140 // 32
    assert all(not (one is False and other is False) for one, other in pairwise(kinds))


def test_a_long_prompt_runs_in_the_background_while_others_decode_at_intervals():
    shape = PoolShape(
        kv_contexts=(KvContextShape(4, 64, False), KvContextShape(4, 160, True)), parked_tokens=0
    )
    subject, pool = scheduler(shape)
    device = Device(shape)
    sequences = {0: sequence(0, list(range(10)), max_tokens=40)}
    subject.add(sequences[0])
    run_until(subject, pool, device, sequences, lambda: sequences[0].generated_tokens > 3)
    sequences[1] = sequence(1, list(range(140)), max_tokens=4)
    subject.add(sequences[1])
    run_until(subject, pool, device, sequences, lambda: device.background is not None)
    now_s, decoded = 1000.0, []
    for _ in range(8):
        step = subject.plan(now_s)
        if step is None:
            assert 0 < subject.resume_s - now_s <= LONGEST_INTERVAL * STEP_S
            now_s = subject.resume_s
            continue
        assert step.is_decode
        device.run(step, pool, sequences)
        conclude(subject, step, sequences)
        decoded.append(now_s)
    assert len(decoded) >= 4
    assert max(later - earlier for earlier, later in pairwise(decoded)) <= LONGEST_INTERVAL * STEP_S


def test_who_outgrows_a_slot_while_the_shared_lane_is_in_use_moves_there_before_its_next_step():
    shape = PoolShape(
        kv_contexts=(KvContextShape(4, 16, False), KvContextShape(4, 160, True)), parked_tokens=0
    )
    subject, pool = scheduler(shape)
    device = Device(shape)
    growing = sequence(0, list(range(6)), max_tokens=10)
    sequences = {0: growing, 1: sequence(1, [7] * 130, max_tokens=4)}
    subject.add(growing)
    run_until(subject, pool, device, sequences, lambda: growing.generated_tokens > 3)
    growing.max_tokens = 30  # more than its slot was chosen for
    subject.add(sequences[1])
    run_until(subject, pool, device, sequences, lambda: device.background is not None)
    while (step := subject.plan(1000.0 + len(growing.tokens))) is not None:
        device.run(step, pool, sequences)
        conclude(subject, step, sequences)
    assert len(growing.tokens) == 17, "16 fit its slot, and the last one has no KV yet"
    step, device.background = device.background, None
    assert step is not None
    conclude(subject, step, sequences)
    run_until(subject, pool, device, sequences, lambda: len(growing.tokens) > 17)
    assert pool.slot(0).kv_context == 1
    run_until(subject, pool, device, sequences, lambda: not sequences)


def test_waiting_long_enough_overtakes_any_priority():
    shape = PoolShape(kv_contexts=(KvContextShape(1, 160, True),), parked_tokens=0)
    subject, _ = scheduler(shape, parallel=1)
    old = sequence(0, list(range(20)), priority=3)
    sequences = {0: old, 1: sequence(1, list(range(20, 40)), priority=0)}
    sequences[1].arrived_s = 100.0
    subject.add(sequences[1])
    subject.add(old)
    subject.plan(100.0)
    assert (old.admitted_s, sequences[1].admitted_s) == (100.0, None)


@given(st.integers(1, 140), st.lists(st.integers(1, 140), max_size=4))
def test_in_deterministic_mode_a_prompt_is_cut_alone_and_at_fixed_places(length, neighbours):
    shape = PoolShape(
        kv_contexts=(KvContextShape(5, 160, False), KvContextShape(1, 160, True)), parked_tokens=0
    )
    subject, pool = scheduler(shape, is_deterministic=True)
    device = Device(shape)
    sequences = {
        number: sequence(number, list(range(size)), salt=str(number))
        for number, size in enumerate([*neighbours, length])
    }
    for each in sequences.values():
        subject.add(each)
    cuts = []
    while sequences:
        step = drive(subject, pool, device, sequences, 0.0)
        assert step is not None
        if not step.is_decode:
            (chunk,) = step.chunks
            cuts += [chunk.count] if chunk.sequence == len(neighbours) else []
    assert cuts == [32] * (length // 32) + ([length % 32] if length % 32 else [])


def test_a_sequence_that_comes_back_does_not_decode_before_the_background_has_computed_the_rest_of_it():
    subject, pool = scheduler()
    device = Device(SHAPE)
    returning = sequence(0, list(range(120)), max_tokens=20)
    for _ in range(9):  # 129 in chunks of 32: the last step in the background leaves one token
        returning.append(1)
    sequences = {0: returning}
    subject.add(returning)
    run_until(subject, pool, device, sequences, lambda: device.background is not None and pool.held(0) == 128)
    assert subject.plan(10_000.0) is None, "its context is in use"
    run_until(subject, pool, device, sequences, lambda: not sequences)


def test_what_ended_stays_beside_those_who_run_while_it_shares_most_of_its_cells():
    shape = PoolShape(kv_contexts=(KvContextShape(8, 1000, True),), parked_tokens=500)
    subject, pool = scheduler(shape)
    device = Device(shape)
    prefix = list(range(96))
    short = sequence(0, [*prefix, 500], max_tokens=2)
    alone = sequence(1, [7] * 60, max_tokens=2)
    running = sequence(2, [*prefix, 600], max_tokens=30)
    sequences = {each.id: each for each in (short, alone, running)}
    for each in tuple(sequences.values()):
        subject.add(each)
    run_until(subject, pool, device, sequences, lambda: sequences.keys() == {2})
    run_until(subject, pool, device, sequences, lambda: running.generated_tokens > 20)
    assert list(device.blobs.values()) == [alone.tokens[:61]], "only what has its cells for itself was parked"
    following = sequence(3, [*short.tokens, 700], max_tokens=2)
    sequences[3] = following
    subject.add(following)
    run_until(subject, pool, device, sequences, lambda: 3 not in sequences)
    assert following.cached_tokens == 98


@pytest.mark.parametrize(("run_tokens", "parked"), [(0, {7, 11, 12}), (4, {7})])
def test_what_lies_scattered_is_computed_again_where_reading_it_costs_more(run_tokens, parked):
    shape = PoolShape(kv_contexts=(KvContextShape(8, 160, True),), parked_tokens=500, run_tokens=run_tokens)
    subject, pool = scheduler(shape)
    device = Device(shape)
    alone = sequence(0, [7] * 30, max_tokens=30)
    sequences = {0: alone}
    subject.add(alone)
    run_until(subject, pool, device, sequences, lambda: not sequences)
    for number in (1, 2):  # side by side, so that their cells lie in turn
        sequences[number] = sequence(number, [10 + number] * 4, max_tokens=30 + number)
        subject.add(sequences[number])
    run_until(subject, pool, device, sequences, lambda: not sequences)
    sequences[3] = sequence(3, [20] * 110, max_tokens=30)
    subject.add(sequences[3])
    run_until(subject, pool, device, sequences, lambda: not sequences)
    assert {blob[0] for blob in device.blobs.values()} == parked


@pytest.mark.parametrize(("neighbours", "rows"), [(0, 128), (1, 64)])
def test_a_prompt_in_the_background_is_read_in_short_steps_once_anybody_else_runs(neighbours, rows):
    shape = PoolShape(
        kv_contexts=(KvContextShape(2, 64, False), KvContextShape(2, 512, True)), parked_tokens=0
    )
    pool = KvPool(shape)
    subject = Scheduler(pool, Pace(STEP_S, 64, 128), context=500, parallel=4)
    device = Device(shape)
    sequences = {number: sequence(number, [number] * 10, max_tokens=50) for number in range(neighbours)}
    for each in sequences.values():
        subject.add(each)
    if neighbours:
        run_until(subject, pool, device, sequences, lambda: sequences[0].generated_tokens > 1)
    sequences[9] = sequence(9, list(range(400)), max_tokens=4)
    subject.add(sequences[9])
    for _ in range(20):  # a token takes 15 ms
        subject._pace.saw_prefill(100.0, 1.5)
    run_until(subject, pool, device, sequences, lambda: device.background is not None)
    assert device.background is not None
    assert device.background.tokens == rows
