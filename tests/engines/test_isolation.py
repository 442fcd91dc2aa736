"""Who is let into a worker beside whom."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import Overloaded, RequestQuarantined
from ganglion.engines.supervision.isolation import IsolationQueue, PromptKey, Suspects, WorkerAdmission
from support.waiting import settled

KEYS = [PromptKey("", bytes([number])) for number in range(6)]


def ward(
    limit: int = 100, suspects: Suspects | None = None, *, has_second: bool = False, alone_s: float = 60.0
) -> IsolationQueue:
    return IsolationQueue(
        limit, suspects or Suspects(), lambda: 0.0, has_second=lambda: has_second, alone_s=alone_s
    )


def suspecting(*keys: PromptKey) -> Suspects:
    suspects = Suspects()
    for key in keys:
        suspects.blame(key, 0.0, was_alone=False)
    return suspects


async def test_a_suspect_runs_apart_and_nobody_waits_for_it_but_the_next_suspect() -> None:
    subject = ward(suspects=suspecting(KEYS[1], KEYS[3]), has_second=True)
    await subject.enter(KEYS[0])
    apart = await subject.enter(KEYS[1])
    beside = await subject.enter(KEYS[2])
    assert [apart.stay, beside.stay] == ["apart", "beside"]
    next_one = asyncio.ensure_future(subject.enter(KEYS[3]))
    await settled()
    assert (subject.inside, subject.queued) == (3, 1)
    subject.leave(apart, "completed")
    assert (await next_one).stay == "apart"
    assert not (await subject.enter(KEYS[1])).is_alone, "it is cleared"


async def test_in_the_only_worker_a_suspect_waits_until_it_is_alone_and_newcomers_pass_it() -> None:
    subject = ward(suspects=suspecting(KEYS[1]))
    first = await subject.enter(KEYS[0])
    suspect = asyncio.ensure_future(subject.enter(KEYS[1]))
    later = await subject.enter(KEYS[2])
    await settled()
    assert (subject.inside, subject.queued) == (2, 1)
    subject.leave(first, "completed")
    await settled()
    assert not suspect.done()
    subject.leave(later, "completed")
    alone = await suspect
    assert alone.stay == "alone"
    waiting = asyncio.ensure_future(subject.enter(KEYS[2]))
    await settled()
    assert not waiting.done()
    subject.leave(alone, "completed")
    assert not (await waiting).is_alone
    assert not (await subject.enter(KEYS[1])).is_alone, "it is cleared"


@pytest.mark.parametrize("is_late", [False, True])
async def test_who_waits_for_a_suspect_in_the_only_worker_has_it_interrupted(is_late: bool) -> None:
    subject = ward(suspects=suspecting(KEYS[1]), alone_s=0.0)
    alone = await subject.enter(KEYS[1])
    asked: list[str] = []

    def interrupt() -> None:
        asked.append("interrupted")
        subject.leave(alone, "abandoned")

    if not is_late:
        alone.interruptible(interrupt)
    await asyncio.sleep(0.01)
    assert not asked, "nobody waits for it"
    waiting = asyncio.ensure_future(subject.enter(KEYS[0]))
    await asyncio.sleep(0.01)
    if is_late:
        alone.interruptible(interrupt)
    assert not (await waiting).is_alone
    assert asked == ["interrupted"]
    again = asyncio.ensure_future(subject.enter(KEYS[1]))
    await settled()
    assert not again.done(), "it is still a suspect"
    again.cancel()


async def test_nobodys_many_suspects_keep_anothers_one_waiting() -> None:
    of_one = [PromptKey("one", bytes([number])) for number in range(4)]
    of_another = PromptKey("another", b"0")
    subject = ward(suspects=suspecting(*of_one, of_another), has_second=True)
    order: list[PromptKey] = []

    async def run(key: PromptKey) -> None:
        place = await subject.enter(key)
        order.append(key)
        await asyncio.sleep(0)
        subject.leave(place, "abandoned")

    await asyncio.gather(*(run(key) for key in (*of_one, of_another)))
    assert order.index(of_another) == 1


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
    suspect = asyncio.ensure_future(subject.enter(KEYS[5]))
    await settled()
    for place in inside:
        subject.leave(place, "crashed")
    twin = asyncio.ensure_future(subject.enter(KEYS[2]))
    subject.leave(await suspect, "completed")
    assert (await twin).is_alone


async def test_a_full_ward_refuses_and_suspects_alone_do_not_fill_it() -> None:
    subject = ward(limit=8, suspects=suspecting(KEYS[1]))
    await subject.enter(KEYS[0])
    waiting = [asyncio.ensure_future(subject.enter(KEYS[1])) for _ in range(2)]
    await settled()
    with pytest.raises(Overloaded, match="alone"):
        await subject.enter(KEYS[1])
    for _ in range(5):
        await subject.enter(KEYS[0])
    with pytest.raises(Overloaded):
        await subject.enter(KEYS[0])
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await subject.enter(KEYS[0])
    assert (subject.inside, subject.queued) == (7, 0)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["completed", "abandoned", "crashed", "cancel"]), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(ACTIONS, st.booleans())
def test_under_any_interleaving_a_suspect_is_alone_and_nobody_waits_for_ever(actions, has_second) -> None:
    async def scenario() -> None:
        subject, tasks = ward(has_second=has_second), list[asyncio.Task[WorkerAdmission]]()
        inside: list[WorkerAdmission] = []
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
            first = [place for place in inside if place.stay != "apart"]
            assert len(inside) - len(first) <= (1 if has_second else 0)
            assert len(first) == 1 or not any(place.is_alone for place in first)
            assert not has_second or all(task.done() or subject.queued for task in tasks)
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
