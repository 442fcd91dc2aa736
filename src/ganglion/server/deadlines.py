"""Deadlines of an answer's stages, and the timer that they and the writers of streams share."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ganglion.core.delivery import Delivery, Room, Sink, give
from ganglion.core.errors import DeadlineExceeded
from ganglion.core.events import Delta, Event, Failed, Finished, Opened, Pieces, Progress, Started, TokenEvent
from ganglion.server.settings import AnswerDeadlines

# `asyncio.timeout` makes and cancels a timer on every entry, about 6 µs, three times for each token. Here
# one timer is left running: when it fires before the wait is due, it sleeps on until then.


class Alarm:
    """`with alarm.at(due_s): await …` raises TimeoutError when the wait is not over by then.

    One alarm serves one wait at a time; `close` it when the last is over.
    """

    __slots__ = ("_cancelling", "_due_s", "_fires_s", "_has_rung", "_is_set", "_loop", "_task", "_timer")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._fires_s = 0.0
        self._due_s = 0.0
        self._is_set = False
        self._has_rung = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    def after(self, seconds: float) -> Self:
        """The alarm, due in so many seconds."""
        return self.at(self._loop.time() + seconds)

    def at(self, due_s: float) -> Self:
        """The alarm, due at a time of the event loop's clock."""
        self._due_s = due_s
        if self._timer is None or due_s < self._fires_s:
            self.close()
            self._arm()
        return self

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._is_set = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A task that is cancelled here holds its frames, and one of them this: a circle nobody needs.
        task, self._task = self._task, None
        self._is_set = False
        if not self._has_rung:
            return
        self._has_rung = False
        assert task is not None
        is_ours = task.uncancel() <= self._cancelling
        if is_ours and kind in (None, asyncio.CancelledError):
            raise TimeoutError from error

    def _arm(self) -> None:
        self._fires_s = self._due_s
        self._timer = self._loop.call_at(self._due_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._is_set:
            return
        if self._loop.time() < self._due_s:
            self._arm()
            return
        self._has_rung = True
        assert self._task is not None
        self._task.cancel()


_E = TypeVar("_E", Event, TokenEvent)


async def with_deadlines(
    events: AsyncGenerator[_E, None], deadlines: AnswerDeadlines
) -> AsyncGenerator[_E | Failed, None]:
    """A stream, ended with `Failed(DeadlineExceeded)` when a stage takes too long; closes what it reads.

    Only the engine's own time counts against the idle deadline: a slow reader is cut where it is written to.
    """
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


async def deliver_in_time(
    deliver: Callable[[Sink[Event]], Delivery], deadlines: AnswerDeadlines, sink: Sink[Event]
) -> None:
    """A delivery, ended with `Failed(DeadlineExceeded)` when a stage takes too long.

    Only the engine's own time counts against the idle deadline: a slow reader is cut where it is written to.
    """
    loop = asyncio.get_running_loop()
    stage = _Stage(deadlines, loop.time())
    with closing(Alarm()) as alarm:

        def record(events: Sequence[Event]) -> Room:
            now_s = loop.time()
            for event in events:
                stage.advance(event, now_s)
            room = sink(events)
            if room is not None:
                alarm.at(now_s + _NOT_NOW_S)
                return _Pause(room, lambda: alarm.at(stage.due(loop.time())))
            alarm.at(stage.due(now_s))
            return None

        try:
            with alarm.at(stage.due(loop.time())):
                await deliver(record)
        except TimeoutError:
            if not stage.is_over:
                await give(sink, Failed(stage.error(loop.time())))


_NOT_NOW_S: Final = 86400.0
"""Longer than any reader is waited for."""


class _Pause:
    """A wait, and what is to be done when it is over."""

    __slots__ = ("_after", "_room")

    def __init__(self, room: Awaitable[None], after: Callable[[], object]) -> None:
        self._room = room
        self._after = after

    def __await__(self) -> Generator[Any, Any, None]:
        yield from self._room.__await__()
        self._after()


class _Stage:
    """The stage of a stream, and when it must be over."""

    def __init__(self, deadlines: AnswerDeadlines, now_s: float) -> None:
        self._deadlines = deadlines
        self._end_s = now_s + deadlines.total_s
        self._name, self._limit_s = "queue", deadlines.queue_s
        self._due_s = now_s + deadlines.queue_s
        self.is_over = False
        """Whether the stream has ended."""

    def due(self, now_s: float) -> float:
        """The time by which the next event must come."""
        if self._name == "idle":
            self._due_s = now_s + self._limit_s
        return min(self._due_s, self._end_s)

    def advance(self, event: Event | TokenEvent, now_s: float) -> None:
        """Move on by an event that came in time."""
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
            case Finished() | Failed():
                self.is_over = True
            case _:
                pass

    def error(self, now_s: float) -> DeadlineExceeded:
        """The deadline that has just passed."""
        if self._end_s <= now_s and self._end_s <= self._due_s:
            return DeadlineExceeded("total", self._deadlines.total_s)
        return DeadlineExceeded(self._name, self._limit_s)
