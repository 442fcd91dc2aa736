"""Answers that are delivered: events go to a sink in the call that brings them, and nobody is woken for them.

Law: a sink is called on the event loop, in order, by one caller at a time, and raises only on bugs. Where it
returns an awaitable it is full: nothing more is given to it before that is done. A delivery is a coroutine;
it returns once the answer has ended, and cancelling it cancels the answer.

Reason: an async generator in each layer costs a task's wake and a step through all of them for each token of
each stream. A worker sends a step's tokens in one frame, and a delivery carries them from there to the
sockets in one chain of plain calls.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Final, Generic, TypeAlias, TypeVar, cast

from ganglion.core.engine import Engine, TokenEngine
from ganglion.core.events import Event, Failed, Progress, TokenEvent
from ganglion.core.request import Request, TokenRequest

_E = TypeVar("_E", Event, TokenEvent)

Room: TypeAlias = Awaitable[None] | None
"""What a sink that is full wants awaited; None where it is not."""
Sink = Callable[[Sequence[_E]], Room]
Delivery: TypeAlias = Coroutine[None, None, None]

_MOST_UNREAD: Final = 64
"""Events that wait for a reader: enough to join a burst, and few, so that one who stops stops the engine."""


async def give(sink: Callable[[Sequence[Progress | Failed]], Room], event: Progress | Failed) -> None:
    """Give one event to a sink, and wait while it is full."""
    room = sink((event,))
    if room is not None:
        await room


async def drained(events: AsyncGenerator[_E, None], sink: Sink[_E]) -> None:
    """Deliver what a generator yields."""
    async with aclosing(events):
        async for event in events:
            room = sink((event,))
            if room is not None:
                await room


def generate_into(engine: Engine, request: Request, sink: Sink[Event]) -> Delivery:
    """Deliver an engine's answer, by its own `generate_into` where it has one."""
    own = getattr(engine, "generate_into", None)
    if own is None:
        return drained(engine.generate(request), sink)
    return cast(Delivery, own(request, sink))


def run_into(engine: TokenEngine, request: TokenRequest, sink: Sink[TokenEvent]) -> Delivery:
    """Deliver what a token engine continues, by its own `run_into` where it has one."""
    own = getattr(engine, "run_into", None)
    if own is None:
        return drained(engine.run(request), sink)
    return cast(Delivery, own(request, sink))


async def pulled(deliver: Callable[[Sink[_E]], Delivery]) -> AsyncGenerator[_E, None]:
    """The events of a delivery one by one; closing this cancels it, and waits until it is over."""
    unread = _Unread[_E]()
    task = asyncio.create_task(deliver(unread.put))
    task.add_done_callback(unread.end)
    try:
        while events := await unread.take():
            for event in events:
                yield event
        task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Unread(Generic[_E]):
    """Events that were delivered and not read yet."""

    def __init__(self) -> None:
        self._events: list[_E] = []
        self._has_ended = False
        self._arrived: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    def put(self, events: Sequence[_E]) -> Room:
        self._events += events
        _resolve(self._arrived)
        # Whoever hears that a request waits may leave before anything else is done for it.
        if len(self._events) < _MOST_UNREAD and not (events and isinstance(events[-1], Progress)):
            return self._room
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    def end(self, _: object) -> None:
        self._has_ended = True
        _resolve(self._arrived)

    async def take(self) -> list[_E]:
        """All that is there, waiting for the first; empty once nothing more comes."""
        room, self._room = self._room, None
        _resolve(room)
        while not self._events and not self._has_ended:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        events, self._events = self._events, []
        return events


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
