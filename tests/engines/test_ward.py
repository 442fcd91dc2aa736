"""Who is let into a worker beside whom."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import Overloaded, RequestQuarantined
from ganglion.engines.suspects import Key, Suspects
from ganglion.engines.ward import Place, Ward

KEYS = [Key("", bytes([number])) for number in range(6)]


def ward(limit: int = 100, suspects: Suspects | None = None) -> Ward:
    return Ward(limit, suspects or Suspects(), lambda: 0.0)


def suspecting(*keys: Key) -> Suspects:
    suspects = Suspects()
    for key in keys:
        suspects.blame(key, 0.0, was_alone=False)
    return suspects


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_suspect_waits_until_it_is_alone_and_the_others_for_it() -> None:
    subject = ward(suspects=suspecting(KEYS[1]))
    first = await subject.enter(KEYS[0])
    suspect, later = [asyncio.ensure_future(subject.enter(key)) for key in (KEYS[1], KEYS[2])]
    await settled()
    assert (subject.inside, subject.queued) == (1, 2)
    subject.leave(first, "completed")
    alone = await suspect
    await settled()
    assert (alone.is_alone, later.done(), subject.inside) == (True, False, 1)
    subject.leave(alone, "completed")
    assert not (await later).is_alone
    assert not (await subject.enter(KEYS[1])).is_alone, "it is cleared"


async def test_one_that_crashes_alone_is_turned_away_from_then_on_also_where_it_waits() -> None:
    subject = ward(suspects=suspecting(KEYS[1]))
    alone = await subject.enter(KEYS[1])
    twin, neighbour = [asyncio.ensure_future(subject.enter(key)) for key in (KEYS[1], KEYS[2])]
    await settled()
    subject.leave(alone, "crashed")
    with pytest.raises(RequestQuarantined):
        await twin
    await neighbour
    with pytest.raises(RequestQuarantined):
        await subject.enter(KEYS[1])
    assert subject.inside == 1


async def test_one_that_is_given_up_alone_stays_a_suspect() -> None:
    subject = ward(suspects=suspecting(KEYS[1]))
    subject.leave(await subject.enter(KEYS[1]), "abandoned")
    assert (await subject.enter(KEYS[1])).is_alone


async def test_all_whom_a_crash_concerns_are_blamed_before_anybody_is_let_in() -> None:
    subject = ward(suspects=suspecting(KEYS[5]))
    inside = [await subject.enter(key) for key in KEYS[:3]]
    suspect, twin = [asyncio.ensure_future(subject.enter(key)) for key in (KEYS[5], KEYS[2])]
    await settled()
    for place in inside:
        subject.leave(place, "crashed")
    alone = await suspect
    subject.leave(alone, "completed")
    assert (await twin).is_alone


async def test_a_full_ward_refuses() -> None:
    subject = ward(limit=3, suspects=suspecting(KEYS[1]))
    await subject.enter(KEYS[0])
    waiting = [asyncio.ensure_future(subject.enter(KEYS[1])) for _ in range(2)]
    await settled()
    with pytest.raises(Overloaded):
        await subject.enter(KEYS[0])
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await subject.enter(KEYS[0])
    assert (subject.inside, subject.queued) == (2, 0)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["completed", "abandoned", "crashed", "cancel"]), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_under_any_interleaving_a_suspect_is_alone_and_nobody_waits_for_ever(actions) -> None:
    async def scenario() -> None:
        subject, tasks = ward(), list[asyncio.Task[Place]]()
        inside: list[Place] = []
        for action, number in actions:
            if action == "enter":
                tasks.append(asyncio.create_task(subject.enter(KEYS[number])))
            elif action == "cancel" and tasks:
                tasks[number % len(tasks)].cancel()
            elif action == "crashed":
                while inside:
                    subject.leave(inside.pop(), "crashed")
            elif inside:
                subject.leave(inside.pop(number % len(inside)), action)
            await settled()
            for task in [task for task in tasks if task.done()]:
                tasks.remove(task)
                if not task.cancelled() and task.exception() is None:
                    inside.append(task.result())
            assert subject.inside == len(inside)
            assert len(inside) == 1 or not any(place.is_alone for place in inside)
        while tasks:
            while inside:
                subject.leave(inside.pop(), "completed")
            done, _ = await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            assert done, "somebody waits for ever"
            for task in done:
                tasks.remove(task)
                if not task.cancelled() and task.exception() is None:
                    inside.append(task.result())

    asyncio.run(scenario())
