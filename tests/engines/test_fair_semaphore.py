"""Turns: bounded for all and for each, fair, and never lost."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import Overloaded
from ganglion.core.fair_queue import FairQueue
from ganglion.engines.fair_semaphore import FairPermit, FairSemaphore
from support.waiting import settled


def turns_of(room: int, each: int, *, most: int = 1000, most_each: int = 1000) -> FairSemaphore:
    return FairSemaphore(room, each, FairQueue(most=most, most_each=most_each, of="things"))


async def test_a_free_turn_is_had_at_once_and_given_back_once() -> None:
    turns = turns_of(1, 1)
    turn = turns.take("a")
    assert turn is not None
    assert turns.take("b") is None
    turn.close()
    turn.close()
    assert turns.used == 0
    assert turns.take("b") is not None


async def test_one_tenant_leaves_room_for_another() -> None:
    turns = turns_of(3, 2)
    first, second = turns.take("greedy"), turns.take("greedy")
    assert first is not None and second is not None
    waiting = asyncio.create_task(turns.enter("greedy"))
    await settled()
    assert not waiting.done()
    assert turns.take("modest") is not None, "who waits for its own share is in nobody's way"
    first.close()
    (await waiting).close()
    second.close()


async def test_a_hundred_who_wait_are_one_turn_ahead_of_another_tenant() -> None:
    turns = turns_of(1, 1)
    order: list[str] = []

    async def work(tenant: str) -> None:
        with await turns.enter(tenant):
            order.append(tenant)
            await asyncio.sleep(0)

    held = turns.take("greedy")
    assert held is not None
    tasks = [asyncio.create_task(work("greedy")) for _ in range(100)]
    await settled()
    tasks.append(asyncio.create_task(work("modest")))
    await settled()
    held.close()
    await asyncio.gather(*tasks)
    assert order.index("modest") <= 1
    assert turns.used == turns.waiting == 0


async def test_a_large_one_is_not_starved_by_small_ones() -> None:
    turns = turns_of(10, 10)
    small = [turns.take(f"tenant {number}", 3) for number in range(3)]
    large = asyncio.create_task(turns.enter("large", 9))
    await settled()
    assert turns.take("late", 1) is None, "who comes later does not overtake"
    for turn in small:
        assert turn is not None
        turn.close()
    (await large).close()


async def test_too_many_who_wait_are_refused_with_a_word_on_when_to_come_back() -> None:
    turns = turns_of(1, 1, most_each=2)
    assert turns.take("a") is not None
    waiting = [asyncio.create_task(turns.enter("a")) for _ in range(2)]
    await settled()
    with pytest.raises(Overloaded) as refused:
        await turns.enter("a")
    assert refused.value.retry_after_s
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert turns.waiting == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["enter", "leave", "cancel", "settle"]), st.integers(0, 30), st.integers(1, 4)
        ),
        max_size=60,
    )
)
def test_whatever_is_cancelled_when_nothing_is_lost(steps: list[tuple[str, int, int]]) -> None:
    async def play() -> None:
        turns = turns_of(6, 4)
        tasks: list[asyncio.Task[FairPermit]] = []
        for kind, number, size in steps:
            match kind:
                case "enter":
                    tasks.append(asyncio.create_task(turns.enter("abc"[number % 3], size)))
                case "settle":
                    await settled()
                case "cancel" if tasks:
                    task = tasks[number % len(tasks)]
                    if not task.done():
                        task.cancel()
                case "leave" if tasks:
                    task = tasks.pop(number % len(tasks))
                    if not task.done():
                        task.cancel()
                    with suppress(asyncio.CancelledError):
                        (await task).close()
                case _:
                    pass
            assert turns.used <= 6
        while tasks:
            await settled()
            for task in [task for task in tasks if task.done()]:
                tasks.remove(task)
                if not task.cancelled():
                    task.result().close()
        assert turns.used == turns.waiting == 0
        assert not turns._held

    asyncio.run(play())
