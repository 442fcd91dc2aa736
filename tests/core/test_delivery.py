"""Deliveries pulled as generators, and generators delivered."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from ganglion.core.delivery import Sink, drained, give, pulled
from ganglion.core.errors import EngineFailed
from ganglion.core.events import Delta, Event, Failed, Progress

MANY = 1000


async def count_up(sink: Sink[Event], made: list[int], many: int = MANY) -> None:
    for number in range(many):
        made.append(number)
        room = sink((Delta(number, "a"),))
        if room is not None:
            await room


async def test_what_is_delivered_is_pulled_in_order_and_ends() -> None:
    async with aclosing(pulled(lambda sink: count_up(sink, []))) as events:
        found = [event.index async for event in events if isinstance(event, Delta)]
    assert found == list(range(MANY))


async def test_a_reader_that_stops_stops_the_delivery() -> None:
    made: list[int] = []
    async with aclosing(pulled(lambda sink: count_up(sink, made))) as events:
        await anext(events)
        for _ in range(200):
            await asyncio.sleep(0)
        assert 1 < len(made) < 200


async def test_closing_cancels_the_delivery_and_waits_for_its_end() -> None:
    ended: list[str] = []

    async def deliver(sink: Sink[Event]) -> None:
        try:
            await give(sink, Progress("queued", 0, 1))
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("ended")

    async with aclosing(pulled(deliver)) as events:
        await anext(events)
    assert ended == ["ended"]


async def test_whoever_hears_that_it_waits_may_leave_before_anything_else_is_done() -> None:
    went_on: list[str] = []

    async def deliver(sink: Sink[Event]) -> None:
        await give(sink, Progress("queued", 0, 1))
        went_on.append("on")

    for _ in range(20):
        events = pulled(deliver)
        await anext(events)
        for _ in range(5):
            await asyncio.sleep(0)
        await events.aclose()
    assert not went_on


async def test_what_a_delivery_raises_comes_after_its_events() -> None:
    async def deliver(sink: Sink[Event]) -> None:
        await give(sink, Failed(EngineFailed("first")))
        raise ZeroDivisionError

    async with aclosing(pulled(deliver)) as events:
        assert isinstance(await anext(events), Failed)
        with pytest.raises(ZeroDivisionError):
            await anext(events)


async def test_a_generator_is_not_asked_for_more_while_the_sink_is_full() -> None:
    room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    taken: list[Event] = []

    async def events() -> AsyncGenerator[Event, None]:
        for index in range(3):
            yield Delta(index, "a")

    def sink(given: object) -> asyncio.Future[None] | None:
        taken.extend(given)  # type: ignore[arg-type]
        return room if len(taken) == 2 else None

    delivering = asyncio.create_task(drained(events(), sink))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(taken) == 2
    room.set_result(None)
    await delivering
    assert len(taken) == 3
