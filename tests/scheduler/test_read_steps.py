"""Sequences whose residual stream is wanted: each position once, of prompt and answer, whatever is cached."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion.scheduler.pace import Pace
from ganglion.scheduler.pool import KvPool
from ganglion.scheduler.scheduler import Scheduler
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.slot_table import PoolShape
from ganglion.scheduler.slots import KvContextShape
from ganglion.scheduler.spans import Spans, merged
from ganglion.scheduler.step import Step

CONTEXT = 160
SHAPE = PoolShape((KvContextShape(2, 48, False), KvContextShape(3, 176, True)), parked_tokens=100)
ranges = st.lists(
    st.tuples(st.integers(0, CONTEXT), st.one_of(st.none(), st.integers(0, CONTEXT))), max_size=4
)


def positions(spans: Spans) -> list[int]:
    return [place for span in spans for place in range(*span)]


def new(
    number: int,
    tokens: list[int],
    *,
    readout: Spans,
    max_tokens: int = 4,
    logit_spans: Spans = (),
    priority: int = 0,
) -> Sequence:
    return Sequence.new(
        number,
        salt="",
        tokens=tokens,
        max_tokens=max_tokens,
        priority=priority,
        arrived_s=0.0,
        logit_spans=logit_spans,
        readout=readout,
    )


class Drive:
    """Runs a scheduler dry; the last token of each sequence is run once more to be read."""

    def __init__(self, *, parallel: int = 3) -> None:
        self.scheduler = Scheduler(KvPool(SHAPE), Pace(0.5, 32), context=CONTEXT, parallel=parallel)
        self.sequences: dict[int, Sequence] = {}
        self.seen: dict[int, list[int]] = {}

    def add(self, sequence: Sequence) -> None:
        self.sequences[sequence.id] = sequence
        self.seen[sequence.id] = []
        self.scheduler.add(sequence)

    def step(self, now_s: float) -> Step | None:
        step = self.scheduler.plan(now_s)
        if step is None:
            return None
        sampled: dict[int, int] = {}
        ended: list[int] = []
        for chunk in step.chunks:
            sequence = self.sequences[chunk.sequence]
            self.seen[sequence.id] += positions(chunk.readout)
            is_whole = chunk.start + chunk.count == len(sequence.tokens)
            assert chunk.wants_logits == (is_whole and sequence.max_tokens > 0 and not sequence.is_ending)
            if chunk.wants_logits:
                sampled[sequence.id] = 5000 + len(sequence.tokens)
                total = len(sequence.tokens) + 1
                sequence.is_ending = sequence.generated_tokens + 1 >= sequence.max_tokens or total >= CONTEXT
            elif is_whole:
                ended.append(sequence.id)
        self.scheduler.commit(step, sampled, step.tokens * 0.004)
        for number in ended:
            self.scheduler.remove(number)
        return step


@settings(deadline=None)
@given(
    prompts=st.lists(
        st.tuples(
            st.integers(1, CONTEXT - 1), st.integers(0, 1), st.integers(0, 12), st.integers(-1, 1), ranges
        ),
        min_size=1,
        max_size=6,
    )
)
def test_every_position_that_is_wanted_runs_once_and_in_order(
    prompts: list[tuple[int, int, int, int, list[tuple[int, int | None]]]],
) -> None:
    drive = Drive()
    waiting = []
    for number, (length, kind, max_tokens, priority, asked) in enumerate(prompts):
        tokens = [kind * 1000 + place for place in range(length)]
        readout = merged(asked, CONTEXT)
        waiting.append(new(number, tokens, readout=readout, max_tokens=max_tokens, priority=priority))
    for turn in range(3000):
        if waiting and turn % 7 == 0:
            drive.add(waiting.pop())  # the more urgent ones take the places of those that run
        if not waiting and drive.scheduler.is_idle:
            break
        drive.step(float(turn))
    assert drive.scheduler.is_idle
    for number, sequence in drive.sequences.items():
        expected = [place for place in positions(sequence.readout) if place < len(sequence.tokens)]
        assert drive.seen[number] == expected
        assert len(sequence.tokens) <= CONTEXT


@given(asked=ranges, wanted=ranges, length=st.integers(1, CONTEXT), read=st.integers(0, CONTEXT))
def test_cached_kv_stands_for_nothing_that_is_to_be_read(
    asked: list[tuple[int, int | None]], wanted: list[tuple[int, int | None]], length: int, read: int
) -> None:
    subject = new(
        0,
        list(range(length)),
        readout=merged(asked, CONTEXT),
        logit_spans=merged(wanted, length),
        max_tokens=1,
    )
    subject.read_tokens = read
    unread = [place for place in positions(subject.readout) if place >= read]
    scored = [place for place in positions(subject.logit_spans) if place >= read]
    assert 0 <= subject.reusable <= length - 1
    assert all(place >= subject.reusable for place in [*unread, *scored])
    assert subject.reusable == min([length - 1, *unread, *scored])


def test_a_prefix_is_reused_up_to_the_first_position_that_is_to_be_read() -> None:
    drive = Drive()
    drive.add(new(0, list(range(100)), readout=(), max_tokens=1))
    while not drive.scheduler.is_idle:
        drive.step(0.0)
    again = new(1, list(range(100)), readout=((70, CONTEXT),), max_tokens=2)
    drive.add(again)
    while not drive.scheduler.is_idle:
        drive.step(1.0)
    assert again.cached_tokens == 70
    assert drive.seen[1] == list(range(70, 102))


def test_prompts_that_are_only_read_share_a_batch() -> None:
    drive = Drive()
    for number in range(2):
        drive.add(new(number, [number * 50 + place for place in range(12)], readout=((0, CONTEXT),)))
    step = drive.step(0.0)
    assert step is not None
    assert [chunk.count for chunk in step.chunks] == [12, 12]
