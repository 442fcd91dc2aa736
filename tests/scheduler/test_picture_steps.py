"""Steps among pictures: what one may compute, what is kept, and that nobody waits for another's picture."""

from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import SHAPE, Device, drive, run_until, scheduler

from ganglion.scheduler.pictures import Picture, outside, pictures_in, stretch
from ganglion.scheduler.sequence import Sequence
from support.examples import examples

LAYOUTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30), st.booleans()), min_size=1, max_size=4)
"""Text and a picture after it, and whether the picture is computed whole."""


def with_pictures(number: int, layout, *, tail: int = 5, is_ready: bool = False) -> Sequence:
    tokens: list[int] = []
    pictures = []
    for text, rows, is_whole in layout:
        tokens += range(text)
        pictures.append(Picture(len(tokens), len(tokens) + rows, is_whole, is_ready))
        tokens += (-2 - 100 * text - row for row in range(rows))
    tokens += range(tail)
    return Sequence.new(
        number,
        salt="",
        tokens=tokens,
        max_tokens=4,
        priority=0,
        arrived_s=float(number),
        pictures=tuple(pictures),
    )


def check(step, sequences) -> None:
    """A step is all tokens or all rows that are there, and a whole picture is in one."""
    kinds = set()
    for chunk in step.chunks:
        one = sequences.get(chunk.sequence)
        if one is None:
            continue
        end = chunk.start + chunk.count
        kinds.add(one.tokens[chunk.start] < 0)
        assert len({token < 0 for token in one.tokens[chunk.start : end]}) == 1
        for picture in one.pictures:
            if picture.start < end and chunk.start < picture.end:
                assert picture.is_ready
                assert picture.start <= chunk.start
                assert end <= picture.end
                assert not picture.is_whole or (chunk.start, end) == (picture.start, picture.end)
    assert len(kinds) < 2


@settings(max_examples=examples(100))
@given(
    layouts=st.lists(LAYOUTS, min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
    is_deterministic=st.booleans(),
)
def test_any_pictures_are_computed_in_steps_of_one_kind_once_they_are_there(layouts, order, is_deterministic):
    subject, pool = scheduler(is_deterministic=is_deterministic)
    device = Device(SHAPE)
    sequences = {
        number: one
        for number, layout in enumerate(layouts)
        for one in (with_pictures(number, layout),)
        if len(one.tokens) < 140
    }
    everybody = dict(sequences)
    for one in list(sequences.values()):
        subject.add(one)
    for count in range(20_000):
        if not sequences:
            break
        awaited = [each for one in sequences.values() for each in subject.awaits(one)]
        if awaited and order.random() < 0.3:
            order.choice(awaited).is_ready = True
        step = drive(subject, pool, device, sequences, float(count))
        is_awaited = any(subject.awaits(one) for one in sequences.values())
        assert step is not None or is_awaited, "who needs no picture goes on"
        if step is not None:
            check(step, everybody)
    assert not sequences


def test_whoever_waits_for_a_picture_holds_up_nobody():
    subject, pool = scheduler()
    device = Device(SHAPE)
    blind = with_pictures(0, [(4, 20, False)])
    sequences = {0: blind, 1: with_pictures(1, [(3, 10, False)], is_ready=True)}
    for one in list(sequences.values()):
        subject.add(one)
    run_until(subject, pool, device, sequences, lambda: 1 not in sequences)
    assert [picture.start for picture in subject.awaits(blind)] == [4]
    assert subject.plan(1000.0) is None
    blind.pictures[0].is_ready = True
    run_until(subject, pool, device, sequences, lambda: not sequences)


def test_what_is_reused_ends_before_or_after_a_picture_and_its_rows_are_not_asked_for_again():
    subject, pool = scheduler()
    device = Device(SHAPE)
    first = with_pictures(0, [(16, 24, False)], tail=20, is_ready=True)
    sequences = {0: first}
    subject.add(first)
    run_until(subject, pool, device, sequences, lambda: not sequences)
    again = with_pictures(1, [(16, 24, False)], tail=25)
    inside = with_pictures(2, [(16, 30, False)], is_ready=True)
    sequences = {1: again, 2: inside}
    for one in list(sequences.values()):
        subject.add(one)
    run_until(subject, pool, device, sequences, lambda: not sequences)
    assert again.cached_tokens == 16 + 24 + 20
    assert not again.pictures[0].is_ready
    assert inside.cached_tokens == 16, "the same rows and more of them are another picture"


def test_a_length_is_cut_to_where_no_picture_is():
    pictures = (Picture(4, 10), Picture(10, 12))
    assert [outside(pictures, length) for length in (3, 4, 5, 9, 10, 11, 12, 20)] == [
        *(3, 4, 4, 4, 10, 10, 12, 20)
    ]


def test_a_step_goes_up_to_a_border_and_into_no_picture_that_is_not_there():
    pictures = (Picture(4, 10, is_ready=True), Picture(10, 12))
    assert [stretch(pictures, start, 20) for start in (0, 3, 4, 9, 10, 12, 19)] == [4, 1, 6, 1, 0, 8, 1]


def test_pictures_of_a_bare_list_are_its_runs_of_negative_ids():
    found = pictures_in([1, -2, -3, 5, -7])
    assert [(each.start, each.end) for each in found] == [(1, 3), (4, 5)]
