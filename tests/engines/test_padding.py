"""Rows that fill a batch up: which are added, and that nothing of them stays."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ganglion.engines.llama.worker.padding import of_even_lengths, without_gaps
from ganglion.scheduler.slot_table import NEAR

CELLS = 128
SLOTS = st.lists(st.integers(0, 90), unique=True, min_size=1, max_size=20).map(sorted)
LENGTHS = st.lists(st.integers(0, CELLS), min_size=91, max_size=91)


def passes(runs) -> int:
    """In how many parts the library computes decoding rows: slots that follow each other are one."""
    slots = [run[0] for run in runs]
    return 1 + sum(after != before + 1 for before, after in pairwise(slots))


@given(SLOTS, LENGTHS, st.integers(20, 200))
def test_gaps_are_filled_where_there_is_room_and_every_row_is_its_own(slots, lengths, most):
    runs = [(slot, lengths[slot], [5], True) for slot in slots]
    filled, trims = without_gaps(runs, lengths, CELLS, most)
    assert [run for run in filled if run[3]] == runs
    assert [run[0] for run in filled] == sorted({run[0] for run in filled})
    assert len(filled) == len(runs) + len(trims) <= most
    assert all(length == lengths[slot] < CELLS for slot, length in trims)
    assert passes(filled) <= passes(runs)


def test_what_lies_near_is_one_pass_and_what_lies_far_is_not():
    near, far = [(0, 3, [5], True), (NEAR + 1, 3, [5], True)], [(0, 3, [5], True), (NEAR + 2, 3, [5], True)]
    assert passes(without_gaps(near, [0] * 99, CELLS, 999)[0]) == 1
    assert without_gaps(far, [0] * 99, CELLS, 999) == (far, [])
    full = [0] * 99
    full[7] = CELLS
    assert without_gaps(near, full, CELLS, 999) == (near, []), "a slot that is full has no room for a row"


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), min_size=1, max_size=9), st.integers(60, 600)
)
def test_prompts_are_filled_up_to_even_lengths_or_left_alone(prompts, most):
    runs = [(slot, start, [5] * count, True) for slot, (start, count) in enumerate(prompts)]
    filled, trims = of_even_lengths(runs, CELLS, most)
    assert [run for run in filled if run[3]] == runs
    held = {slot: start + len(tokens) for slot, start, tokens, _ in runs}
    assert all(held[slot] == length for slot, length in trims)
    if trims:
        assert sum(len(run[2]) for run in filled) <= most
        ends: dict[int, int] = {}
        for slot, start, tokens, _ in filled:
            assert start == ends.get(slot, start), "rows of a slot follow each other"
            ends[slot] = start + len(tokens)
        assert all(end <= CELLS for end in ends.values())
        assert all((ends[slot] - start) % 32 == 0 for slot, start, _, _ in runs)
