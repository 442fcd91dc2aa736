"""An engine that gives another one only so much time."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from typing import TypeVar

from ganglion.core.engine import Engine, ModelState
from ganglion.core.errors import DeadlineExceeded
from ganglion.core.events import Delta, Event, Failed, Opened, Pieces, Progress, Started, TokenEvent
from ganglion.core.request import Request
from ganglion.server.alarm import Alarm
from ganglion.server.settings import Deadlines

E = TypeVar("E", Event, TokenEvent)


class Deadlined:
    """Ends a stream with `Failed(DeadlineExceeded)` when a stage takes too long.

    Only the engine's own time counts against the idle deadline: a slow reader is the door's to cut.
    """

    def __init__(self, inner: Engine, deadlines: Deadlines) -> None:
        self._inner = inner
        self._deadlines = deadlines

    def models(self) -> tuple[ModelState, ...]:
        """The inner engine's."""
        return self._inner.models()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The inner engine's stream, cut short when it must be."""
        return cut(self._inner.generate(request), self._deadlines)


async def cut(events: AsyncGenerator[E, None], deadlines: Deadlines) -> AsyncGenerator[E | Failed, None]:
    """A stream, ended with `Failed(DeadlineExceeded)` when a stage takes too long; closes what it reads."""
    loop = asyncio.get_running_loop()
    stage = _Stage(deadlines, loop.time())
    async with aclosing(events):
        with closing(Alarm()) as alarm:
            while True:
                try:
                    with alarm.at(stage.due(loop.time())):
                        event = await anext(events)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    yield Failed(stage.error(loop.time()))
                    return
                stage.advance(event, loop.time())
                yield event


class _Stage:
    """Where a stream is and when that stage must be over."""

    def __init__(self, deadlines: Deadlines, now_s: float) -> None:
        self._deadlines = deadlines
        self._end_s = now_s + deadlines.total_s
        self._name, self._limit_s = "queue", deadlines.queue_s
        self._due_s = now_s + deadlines.queue_s

    def due(self, now_s: float) -> float:
        """When the next event must have come."""
        if self._name == "idle":
            self._due_s = now_s + self._limit_s
        return min(self._due_s, self._end_s)

    def advance(self, event: Event | TokenEvent, now_s: float) -> None:
        """Note an event that came in time."""
        match event:
            case Progress(stage="generated"):
                self._due_s = now_s + self._limit_s
            case Progress():
                pass
            case Started():
                self._name, self._limit_s = "first_token", self._deadlines.first_token_s
                self._due_s = now_s + self._limit_s
            case Opened() | Delta() | Pieces() if self._name != "idle":
                self._name, self._limit_s = "idle", self._deadlines.idle_s
            case _:
                pass

    def error(self, now_s: float) -> DeadlineExceeded:
        """The deadline that has just passed."""
        if self._end_s <= now_s and self._end_s <= self._due_s:
            return DeadlineExceeded("total", self._deadlines.total_s)
        return DeadlineExceeded(self._name, self._limit_s)
