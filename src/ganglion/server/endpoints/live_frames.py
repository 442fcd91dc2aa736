"""An answer's frames from the first byte to the last, each written in the call that brings its event.

Law: nothing is written after the last frames, which are handed back; and while the client's connection takes
no more, or a sign of life is on its way to it, whoever makes the answer waits.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from ganglion.core.delivery import Room
from ganglion.core.events import Event
from ganglion.server.answers import Answers
from ganglion.server.deadlines import Alarm
from ganglion.wire.frame import Comment, Frame, Projection

Frames = list[Frame | Comment]


class FrameSink(Protocol):
    """Where the frames of an answer go."""

    async def start(self) -> None:
        """Say that an answer comes; from now on a failure is a frame."""

    def write_now(self, frames: Sequence[Frame | Comment]) -> bool:
        """Write frames if that needs no waiting; returns whether it did."""

    async def write(self, frames: Sequence[Frame | Comment], *, is_last: bool = False) -> None:
        """Write frames; raises ReaderStalled when the client does not read them."""


class LiveFrames:
    """Writes the frames of the answers as their events come."""

    def __init__(self, projection: Projection, out: FrameSink, alarm: Alarm, *, keep_alive_s: float) -> None:
        self._projection = projection
        self._out = out
        self._alarm = alarm
        self._keep_alive_s = keep_alive_s
        self._unwritten: Frames = []
        self._error: Exception | None = None
        self._changed: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """Done once the client has room again; None while frames are written at once."""

    async def until_last(self, answers: Answers) -> Frames:
        """Write all frames but the last, and return these; raises ReaderStalled."""
        answers.deliver_to(self._take)
        while True:
            if not (self._unwritten or self._error or self._projection.is_done):
                await self._wait_for_news()
            if self._error is not None:
                raise self._error
            if self._projection.is_done:
                return self._unwritten
            frames, self._unwritten = self._unwritten, []
            self._room = self._room or asyncio.get_running_loop().create_future()
            await self._out.write(frames or self._projection.tick())
            if not self._unwritten:
                room, self._room = self._room, None
                room.set_result(None)

    async def _wait_for_news(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        try:
            with self._alarm.after(self._keep_alive_s):
                await self._changed
        except TimeoutError:
            pass
        finally:
            self._changed = None

    def _take(self, choice: int, events: Sequence[Event]) -> Room:
        frames: Frames = []
        try:
            for event in events:
                frames += self._projection.feed(event, choice)
        except Exception as error:  # noqa: BLE001 - the endpoint raises it: whoever makes the answer did not fail
            self._error = error
        if self._error is not None or self._projection.is_done:
            self._unwritten += frames
            self._wake()
            return None
        if not frames:
            return self._room
        if self._room is None and not self._unwritten and self._out.write_now(frames):
            self._alarm.after(self._keep_alive_s)
            return None
        self._unwritten += frames
        self._room = self._room or asyncio.get_running_loop().create_future()
        self._wake()
        return self._room

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
