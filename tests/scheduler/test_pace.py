"""How large a prefill step may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.scheduler.pace import SMALLEST_CHUNK, STRETCH, TILE, Pace

LARGEST = 256
SPEEDS = st.floats(1e-6, 1.0)


def measured(unit_s: float, decode_s: float = 0.0, step_s: float = 0.5) -> Pace:
    """A pace that saw this speed, and nothing else, for long."""
    pace = Pace(step_s, LARGEST)
    for _ in range(40):
        pace.saw_prefill(100.0, 100.0 * unit_s)
        pace.saw_decode(decode_s)
    return pace


def chunk(pace: Pace, budget: float, start: int, *, largest: int = LARGEST) -> int:
    """How much of an endless prompt the next step takes."""
    return pace.part(budget, start, 10**9, largest)


def test_the_first_step_is_one_tile_since_nothing_is_known():
    pace = Pace(0.5, LARGEST)
    assert chunk(pace, pace.budget(is_shared_with_decode=False), 0) <= TILE
    assert pace.budget(is_shared_with_decode=True) == TILE


@given(SPEEDS, st.floats(0, 2.0), st.integers(0, 100_000))
def test_a_chunk_is_never_smaller_than_worth_a_step_nor_larger_than_a_batch(unit_s, decode_s, start):
    pace = measured(unit_s, decode_s)
    for is_shared in (False, True):
        rows = chunk(pace, pace.budget(is_shared_with_decode=is_shared), start)
        assert SMALLEST_CHUNK <= rows <= LARGEST


@given(SPEEDS, st.integers(0, 20_000))
def test_a_step_keeps_its_time_unless_it_is_the_smallest_or_a_tile_that_fewer_rows_would_not_beat(
    unit_s, start
):
    pace = measured(unit_s)
    rows = chunk(pace, pace.budget(is_shared_with_decode=False), start)
    expected_s = rows * pace.work(1, start) * unit_s
    few = max(int(0.5 / unit_s / pace.work(1, start)), SMALLEST_CHUNK)
    is_in_time = expected_s <= 0.5 * (STRETCH if rows == TILE else 1.0) * 1.01
    is_quicker_than_few = rows == TILE and pace.work_of_few(few, start) >= pace.work(TILE, start)
    assert rows == SMALLEST_CHUNK or is_in_time or is_quicker_than_few


@given(SPEEDS, st.integers(0, 20_000), st.integers(1, 2_000))
def test_a_prompt_ends_with_a_whole_tile_wherever_its_steps_have_two(unit_s, start, missing):
    pace = measured(unit_s)
    budget = pace.background_budget(is_alone=True)
    part = pace.part(budget, start, missing, LARGEST)
    assert 0 < part <= min(missing, LARGEST)
    left = missing - part
    assert left == 0 or left >= TILE or chunk(pace, budget, start) < 2 * TILE


def test_a_step_in_the_background_is_longer_while_nobody_else_is_there():
    pace = measured(0.002)
    deep = 5000
    assert chunk(pace, pace.background_budget(is_alone=False), deep, largest=512) == 256
    assert chunk(pace, pace.background_budget(is_alone=True), deep, largest=512) == 512


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_longer_contexts_take_smaller_chunks(one, other):
    pace = measured(0.002)
    budget = pace.budget(is_shared_with_decode=False)
    near, far = sorted((one, other))
    assert chunk(pace, budget, near) >= chunk(pace, budget, far)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 5000))
def test_work_adds_up_however_a_prompt_is_cut(first, second, start):
    parts = Pace.work(first, start) + Pace.work(second, start + first)
    assert parts == pytest.approx(Pace.work(first + second, start))


def test_decoding_neighbours_shrink_the_step():
    pace = measured(0.001, decode_s=0.2)
    assert pace.budget(is_shared_with_decode=False) == pytest.approx(500, rel=0.01)
    assert pace.budget(is_shared_with_decode=True) == pytest.approx(300, rel=0.01)


def test_a_tiny_step_teaches_nothing():
    pace = measured(0.001)
    before = pace.budget(is_shared_with_decode=False)
    pace.saw_prefill(SMALLEST_CHUNK - 1.0, 10.0)
    assert pace.budget(is_shared_with_decode=False) == before


def test_small_steps_do_not_make_the_next_ones_smaller():
    pace = measured(0.004)
    before = pace.budget(is_shared_with_decode=False)
    for _ in range(20):
        pace.saw_prefill(TILE - 1.0, 0.3)  # most of it the fixed cost of a step
    assert pace.budget(is_shared_with_decode=False) == before
    pace.saw_prefill(TILE - 1.0, 0.001)
    assert pace.budget(is_shared_with_decode=False) > before, "a quick one says that tokens are cheap"
    for _ in range(20):
        pace.saw_prefill(2.0 * TILE, 2.0 * TILE * 0.008)
    assert pace.budget(is_shared_with_decode=False) == pytest.approx(before / 2, rel=0.01)
