"""Sequences of different variants: never in one batch, none of them lost, none of them starved."""

from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import PROMPTS, SHAPE, Device, conclude, drive, scheduler

from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.slot_table import PoolShape
from ganglion.scheduler.slots import KvContextShape
from ganglion.scheduler.spans import Spans
from ganglion.scheduler.step import Step
from support.examples import examples

STEERINGS = ("", "calm", "formal")


def sequence(
    number: int,
    tokens: list[int],
    variant: str,
    *,
    max_tokens: int = 8,
    priority: int = 0,
    logit_spans: Spans = (),
) -> Sequence:
    return Sequence.new(
        number,
        salt=variant,
        tokens=tokens,
        max_tokens=max_tokens,
        priority=priority,
        arrived_s=float(number),
        logit_spans=logit_spans,
        variant=variant,
    )


def check(step: Step | None, known: dict[int, str]) -> None:
    """Every sequence of a step is steered as the step says."""
    if step is not None:
        assert {known[chunk.sequence] for chunk in step.chunks} == {step.variant}


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            PROMPTS,
            st.integers(1, 40),
            st.integers(-1, 1),
            st.sampled_from(STEERINGS),
            st.booleans(),
        ),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("background")),
        st.tuples(st.just("abort"), st.integers(0, 30)),
    ),
    max_size=40,
)


@settings(max_examples=examples(200))
@given(ACTIONS, st.booleans())
def test_no_interleaving_mixes_steerings_in_a_step_or_loses_a_sequence(actions, is_deterministic):
    subject, pool = scheduler(is_deterministic=is_deterministic)
    device = Device(SHAPE)
    sequences: dict[int, Sequence] = {}
    known: dict[int, str] = {}
    now_s = 0.0
    for action in actions:
        now_s += 1.0
        if action[0] == "add":
            _, tokens, max_tokens, priority, variant, is_scored = action
            number = len(known)
            wanted = ((0, len(tokens)),) if is_scored else ()
            sequences[number] = sequence(
                number, tokens, variant, max_tokens=max_tokens, priority=priority, logit_spans=wanted
            )
            known[number] = variant
            subject.add(sequences[number])
        elif action[0] == "step":
            for _ in range(action[1]):
                check(drive(subject, pool, device, sequences, now_s), known)
        elif action[0] == "background":
            if device.background is not None:
                step, device.background = device.background, None
                conclude(subject, step, sequences)
        elif action[1] in sequences:
            subject.remove(action[1])
            del sequences[action[1]]
        assert subject.running + subject.waiting == len(sequences)
    for _ in range(20_000):
        if not sequences:
            break
        now_s += 0.1
        step = drive(subject, pool, device, sequences, now_s)
        assert step is not None, "somebody can always run"
        check(step, known)
    assert not sequences
    assert subject.is_idle


def test_each_steering_decodes_once_a_cycle_and_an_unsteered_stream_is_not_starved():
    shape = PoolShape(kv_contexts=(KvContextShape(8, 1000, True),), parked_tokens=0)
    subject, pool = scheduler(shape)
    device = Device(shape)
    names = ["", "", "calm", "calm", "formal"]
    sequences = {
        number: sequence(number, [number] * 20, name, max_tokens=40) for number, name in enumerate(names)
    }
    running = dict(sequences)
    for each in running.values():
        subject.add(each)
    while any(each.generated_tokens == 0 for each in running.values()):
        assert drive(subject, pool, device, sequences, 0.0) is not None
    for _ in range(10):
        steps = [drive(subject, pool, device, sequences, 0.0) for _ in range(3)]
        assert all(step is not None and step.is_decode for step in steps)
        assert sorted((step.variant, len(step.chunks)) for step in steps if step is not None) == [
            ("", 2),
            ("calm", 2),
            ("formal", 1),
        ]
    counts = [each.generated_tokens for each in running.values()]
    assert max(counts) - min(counts) <= len(names), "all get on alike"


def test_a_stream_of_steered_prompts_does_not_keep_an_earlier_unsteered_one_waiting():
    subject, pool = scheduler(parallel=4)
    device = Device(SHAPE)
    sequences = {0: sequence(0, list(range(60)), "", max_tokens=6)}
    subject.add(sequences[0])
    number = 0
    for _ in range(200):
        if 0 not in sequences:
            break
        while len(sequences) < 4:
            number += 1
            sequences[number] = sequence(number, [number] * 30, "calm", max_tokens=4)
            subject.add(sequences[number])
        drive(subject, pool, device, sequences, float(number))
    assert 0 not in sequences
    assert number < 60


def test_without_steering_steps_are_what_they_were():
    subject, pool = scheduler()
    device = Device(SHAPE)
    sequences = {number: sequence(number, [number] * 20, "") for number in range(4)}
    for each in sequences.values():
        subject.add(each)
    sizes = []
    while sequences:
        step = drive(subject, pool, device, sequences, 0.0)
        assert step is not None
        if step.is_decode:
            sizes.append(len(step.chunks))
    assert max(sizes) >= 3, "sequences of one context still decode together"
