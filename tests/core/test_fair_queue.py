"""A fair queue starves nobody, holds its bounds, and forgets what is taken out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import Overloaded
from ganglion.core.fair_queue import REMEMBERED, FairQueue, Waiting

TENANTS = st.sampled_from("abcde")


def queue_of(most: int = 10_000, most_each: int = 10_000) -> FairQueue[int]:
    return FairQueue(most=most, most_each=most_each, of="things")


def drained(queue: FairQueue[int]) -> list[Waiting[int]]:
    served = []
    while (waiting := queue.next()) is not None:
        queue.take(waiting)
        served.append(waiting)
    return served


@given(st.lists(st.tuples(TENANTS, st.integers(1, 1000)), max_size=60))
def test_everything_that_waits_gets_its_turn_once_and_each_tenants_own_in_order(
    arrivals: list[tuple[str, int]],
) -> None:
    queue = queue_of(most=10**6, most_each=10**6)
    put = [queue.put(tenant, number, cost) for number, (tenant, cost) in enumerate(arrivals)]
    served = drained(queue)
    assert sorted(waiting.item for waiting in served) == list(range(len(arrivals)))
    for tenant in "abcde":
        own = [waiting for waiting in put if waiting.tenant == tenant]
        assert [waiting for waiting in served if waiting.tenant == tenant] == own
    assert (len(queue), queue.cost) == (0, 0)


@given(st.lists(st.tuples(TENANTS, st.integers(1, 1000)), max_size=60), st.integers(0, 60))
def test_whoever_comes_anew_waits_for_one_item_of_each_other_tenant(
    arrivals: list[tuple[str, int]], already_served: int
) -> None:
    queue = queue_of(most=10**6, most_each=10**6)
    for number, (tenant, cost) in enumerate(arrivals):
        queue.put(tenant, number, cost)
    for _ in range(already_served):
        if (waiting := queue.next()) is not None:
            queue.take(waiting)
    mine = queue.put("new", -1)
    before = [waiting.tenant for waiting in drained(queue)[: len(arrivals) + 1]]
    ahead = before[: before.index(mine.tenant)]
    assert len(ahead) == len(set(ahead))


@given(st.lists(st.tuples(TENANTS, st.integers(1, 50)), min_size=20, max_size=80))
def test_two_tenants_that_always_wait_get_as_much_as_each_other(arrivals: list[tuple[str, int]]) -> None:
    queue = queue_of(most=10**6, most_each=10**6)
    for number, (_, cost) in enumerate(arrivals):
        queue.put("heavy", number, 10 * cost)
        queue.put("light", number, cost)
    had = {"heavy": 0, "light": 0}
    while (waiting := queue.next()) is not None and had["light"] < sum(cost for _, cost in arrivals):
        queue.take(waiting)
        had[waiting.tenant] += waiting.cost
        if waiting.tenant == "heavy":
            assert had["heavy"] <= had["light"] + 2 * 500


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), TENANTS, st.integers(1, 40)),
            st.tuples(st.just("take"), TENANTS, st.just(0)),
            st.tuples(st.just("remove"), TENANTS, st.integers(0, 1000)),
            st.tuples(st.just("pass"), TENANTS, st.integers(1, 40)),
        ),
        max_size=120,
    )
)
def test_bounds_hold_and_nothing_is_left_behind(steps: list[tuple[str, str, int]]) -> None:
    queue = queue_of(most=100, most_each=50)
    waiting: list[Waiting[int]] = []
    for kind, tenant, number in steps:
        match kind:
            case "put":
                own = sum(each.cost for each in waiting if each.tenant == tenant)
                has_room = own + number <= 50 and queue.cost + number <= 100
                if has_room:
                    waiting.append(queue.put(tenant, 0, number))
                else:
                    with pytest.raises(Overloaded):
                        queue.put(tenant, 0, number)
            case "take":
                if (head := queue.next()) is not None:
                    queue.take(head)
                    waiting.remove(head)
            case "remove" if waiting:
                queue.remove(waiting.pop(number % len(waiting)))
            case "pass":
                queue.pass_by(tenant, number)
            case _:
                pass
        assert len(queue) == len(waiting)
        assert queue.cost == sum(each.cost for each in waiting)
        assert {head.tenant for head in queue.heads()} == {each.tenant for each in waiting}
    for each in waiting:
        queue.remove(each)
    assert queue.next() is None
    assert (len(queue), queue.cost) == (0, 0)


def test_tenants_that_come_once_are_forgotten() -> None:
    queue = queue_of()
    for number in range(5 * REMEMBERED):
        queue.pass_by(f"tenant {number}")
    assert len(queue._ends) <= REMEMBERED + 1


def test_one_who_did_not_have_to_wait_has_had_a_turn() -> None:
    queue = queue_of()
    queue.pass_by("greedy", 100)
    queue.put("greedy", 1, 100)
    queue.put("modest", 2, 100)
    assert [waiting.tenant for waiting in drained(queue)] == ["modest", "greedy"]
