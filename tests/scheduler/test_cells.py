"""The count of shared cells, against lists of cells that are really there."""

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from ganglion.scheduler.cells import SharedCells

SLOTS = st.integers(0, 4)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), SLOTS, st.integers(0, 9)),
        st.tuples(st.just("share"), SLOTS, SLOTS, st.floats(0, 1)),
        st.tuples(st.just("trim"), SLOTS, st.floats(0, 1)),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_used_is_the_number_of_distinct_cells_whatever_the_order(operations):
    subject, fresh = SharedCells(), count()
    slots: dict[int, list[int]] = {slot: [] for slot in range(5)}
    for operation in operations:
        match operation:
            case ("extend", slot, more):
                subject.extend(slot, more)
                slots[slot] += [next(fresh) for _ in range(more)]
            case ("share", source, target, part) if source != target:
                length = int(part * len(slots[source]))
                subject.trim(target, 0)
                subject.share(source, target, length)
                slots[target] = slots[source][:length]
            case ("trim", slot, part):
                length = int(part * len(slots[slot]))
                subject.trim(slot, length)
                slots[slot] = slots[slot][:length]
        assert subject.used == len({cell for cells in slots.values() for cell in cells})
        assert all(subject.length(slot) == len(cells) for slot, cells in slots.items())
        seen = Counter(cell for cells in slots.values() for cell in cells)
        for slot, cells in slots.items():
            assert subject.alone(slot) == sum(seen[cell] == 1 for cell in cells)


def test_a_cell_is_free_only_when_the_last_who_sees_it_lets_go():
    subject = SharedCells()
    subject.extend(0, 10)
    subject.share(0, 1, 6)
    subject.extend(1, 3)
    assert subject.used == 13
    subject.trim(0, 0)
    assert subject.used == 9
    subject.trim(1, 2)
    assert subject.used == 2
    subject.trim(1, 0)
    assert subject.used == 0


def test_who_grows_alone_lies_in_one_run_and_who_takes_turns_in_many():
    subject = SharedCells()
    for _ in range(5):
        subject.extend(0, 2)
    assert subject.runs(0) == 1
    for _ in range(5):
        subject.extend(0, 1)
        subject.extend(1, 1)
    assert (subject.runs(0), subject.runs(1)) == (5, 5)
    subject.share(1, 2, 3)
    assert subject.runs(2) <= 3
    subject.trim(1, 0)
    assert subject.runs(1) == 0
