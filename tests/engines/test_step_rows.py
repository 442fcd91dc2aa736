"""Which rows of a pass are read or steered: each wanted position once, whatever the chunks and neighbours."""

from hypothesis import given
from hypothesis import strategies as st

from ganglion.engines.vllm.worker.step_rows import ResidualWishes, RowSpan, rows_of, wishes_in
from ganglion.scheduler.spans import merged


def test_wishes_survive_the_way_to_whoever_computes() -> None:
    wishes = ResidualWishes(7, ((0, 3), (5, 9)))
    steering = [("calm", 1.5, [6, 12]), ("formal", 0.0, None)]
    found = wishes_in(wishes.as_argument(steering))
    assert found == ResidualWishes(7, ((0, 3), (5, 9)), '[["calm", 1.5, [6, 12]]]')
    assert wishes_in(None) is None
    assert wishes_in({"somebody": "else's"}) is None


def test_a_pass_over_requests_that_ask_for_nothing_has_no_plan() -> None:
    followed = {"b": ResidualWishes(1, ((100, 200),))}
    assert rows_of([("a", 0, 5), ("b", 0, 7)], {}).is_empty
    assert rows_of([("a", 0, 5), ("b", 0, 7)], followed).is_empty
    assert rows_of([], followed).is_empty


def test_rows_are_counted_over_all_requests_of_the_pass() -> None:
    followed = {"b": ResidualWishes(1, ((2, 4), (6, 7)), "calm"), "c": ResidualWishes(2, ((50, 51),))}
    rows = rows_of([("a", 9, 3), ("b", 1, 6), ("c", 50, 1)], followed)
    assert rows.read == [RowSpan(1, 4, 2, 2), RowSpan(1, 8, 6, 1), RowSpan(2, 9, 50, 1)]
    assert rows.read_rows == [4, 5, 8, 9]
    assert rows.steered == [("calm", RowSpan(1, 3, 1, 6))]


ranges = st.lists(st.tuples(st.integers(0, 60), st.one_of(st.none(), st.integers(0, 70))), max_size=4)


@given(
    wanted=st.lists(ranges, min_size=1, max_size=4),
    chunks=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=30),
)
def test_any_chunks_read_each_wanted_position_once(
    wanted: list[list[tuple[int, int | None]]], chunks: list[list[int]]
) -> None:
    followed = {f"r{n}": ResidualWishes(n, merged(each, 64)) for n, each in enumerate(wanted)}
    done = [0] * len(wanted)
    found: list[list[int]] = [[] for _ in wanted]
    for counts in chunks:
        scheduled = [(f"r{n}", done[n], count) for n, count in enumerate(counts) if n < len(wanted)]
        places = [(n, done[n] + at) for n, count in enumerate(counts[: len(wanted)]) for at in range(count)]
        for span in rows_of(scheduled, followed).read:
            read = [places[row] for row in range(span.row, span.row + span.count)]
            assert read == [(span.key, span.position + at) for at in range(span.count)]
            found[span.key] += [position for _, position in read]
        for n, count in enumerate(counts[: len(wanted)]):
            done[n] += count
    for n, each in enumerate(wanted):
        assert found[n] == [at for low, high in merged(each, min(done[n], 64)) for at in range(low, high)]
