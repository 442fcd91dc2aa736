"""Prompts whose logits are wanted: each position once, in exact batches, whatever is cached."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ganglion.scheduler.batch_cut import BY_TILES
from ganglion.scheduler.pace import Pace
from ganglion.scheduler.pool import KvPool
from ganglion.scheduler.scheduler import Scheduler
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.slot_table import PoolShape
from ganglion.scheduler.slots import KvContextShape
from ganglion.scheduler.spans import clipped, end_of, first_from, merged, shifted
from ganglion.scheduler.step import Chunk

LENGTH = 400
MOST_ROWS = 128
ranges = st.lists(
    st.tuples(st.integers(0, LENGTH), st.one_of(st.none(), st.integers(0, LENGTH + 50))), max_size=6
)


@given(asked=ranges, start=st.integers(0, LENGTH), end=st.integers(0, LENGTH), most=st.integers(1, 50))
def test_spans_are_the_sets_they_stand_for(
    asked: list[tuple[int, int | None]], start: int, end: int, most: int
) -> None:
    wanted = {
        place for low, high in asked for place in range(low, LENGTH if high is None else min(high, LENGTH))
    }
    spans = merged(asked, LENGTH)
    assert [place for span in spans for place in range(*span)] == sorted(wanted)
    inside = {place for span in clipped(spans, start, end) for place in range(*span)}
    assert inside == {place for place in wanted if start <= place < end}
    assert {place for span in shifted(spans, -1) for place in range(*span)} == {
        place - 1 for place in wanted if place
    }
    assert first_from(spans, start) == min((place for place in wanted if place >= start), default=None)
    stop = end_of(spans, start, most)
    ahead = sorted(place for place in wanted if place >= start)
    assert stop == (None if len(ahead) <= most else ahead[most])


@settings(deadline=None)
@example(
    prompts=[(1, 0, []), (256, 1, [(0, None)])],
    is_deterministic=False,
    can_move=True,
    speed_s=0.001,
    aborted=9,
)
@given(
    prompts=st.lists(st.tuples(st.integers(1, LENGTH), st.integers(0, 2), ranges), min_size=1, max_size=6),
    is_deterministic=st.booleans(),
    can_move=st.booleans(),
    speed_s=st.sampled_from([0.0001, 0.004, 0.05]),
    aborted=st.integers(0, 6),
)
def test_every_wanted_position_runs_once_in_an_exact_batch(
    prompts: list[tuple[int, int, list[tuple[int, int | None]]]],
    is_deterministic: bool,
    can_move: bool,
    speed_s: float,
    aborted: int,
) -> None:
    contexts = (
        KvContextShape(2, 96, False),
        KvContextShape(1, 256, False, is_exact=True),
        KvContextShape(4, 512, True),
    )
    shape = PoolShape(contexts, parked_tokens=300, can_move=can_move)
    scheduler = Scheduler(
        KvPool(shape),
        Pace(0.5, 256),
        context=LENGTH + 8,
        parallel=4,
        is_deterministic=is_deterministic,
        most_rows=MOST_ROWS,
    )
    sequences: dict[int, Sequence] = {}
    for number, (length, salt, asked) in enumerate(prompts):
        tokens = [salt * 1000 + place for place in range(length)]
        wanted = shifted(merged(asked, length), -1)
        sequence = Sequence.new(
            number,
            salt=f"s{salt}",
            tokens=tokens,
            max_tokens=number % 2,
            priority=number % 3,
            arrived_s=0.0,
            logit_spans=wanted,
        )
        sequences[number] = sequence
        scheduler.add(sequence)
    seen: dict[int, list[int]] = {number: [] for number in sequences}
    now_s = 0.0
    for turn in range(400):
        if turn == 3 and aborted in sequences:
            scheduler.remove(aborted)
        if scheduler.is_idle:
            break
        now_s += 1.0
        step = scheduler.plan(now_s)
        if step is None:
            continue
        assert sum(high - low for chunk in step.chunks for low, high in chunk.logit_spans) <= MOST_ROWS
        for chunk in step.chunks:
            seen[chunk.sequence] += [place for span in chunk.logit_spans for place in range(*span)]
            if chunk.logit_spans and not is_deterministic:
                assert len(step.chunks) == 1
                sequence = sequences[chunk.sequence]
                if len(sequence.tokens) + sequence.max_tokens <= 256:
                    assert not contexts[step.kv_context].is_shared
                assert has_fixed_ends(chunk, len(sequences[chunk.sequence].tokens))
        ended = [
            chunk
            for chunk in step.chunks
            if chunk.start + chunk.count == len(sequences[chunk.sequence].tokens)
        ]
        scheduler.commit(step, {}, step.tokens * speed_s)
        for chunk in ended:
            assert chunk.wants_logits != sequences[chunk.sequence].is_only_read
            scheduler.remove(chunk.sequence)
    assert scheduler.is_idle
    for number, sequence in sequences.items():
        expected = [place for span in sequence.logit_spans for place in range(*span)]
        assert seen[number] == expected or number == aborted


def has_fixed_ends(chunk: Chunk, length: int) -> bool:
    """Whether a batch begins and ends where it always does, or where its rows of logits were too many."""
    rows = BY_TILES.rows
    ends = {0, *range(rows, length - BY_TILES.least + 1, rows), length}
    is_cut_by_rows = chunk.count >= MOST_ROWS or chunk.start % rows >= MOST_ROWS
    return is_cut_by_rows or {chunk.start, chunk.start + chunk.count} <= ends
