"""Background responses, which outlive their client: each runs by itself, can be followed and cancelled.

Law: the frame with the sequence number n is the n-th of its run, for every follower and across reconnects.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, closing
from typing import Final

from ganglion.core.engine import Engine
from ganglion.core.errors import GanglionError, ServerError, ShuttingDown
from ganglion.core.events import Failed, Progress
from ganglion.server.deadlines import Alarm
from ganglion.server.responses.responses_service import (
    ResponsesExchange,
    ResponsesService,
    answers_to,
)
from ganglion.server.settings import ServerSettings
from ganglion.server.state import AppState
from ganglion.store.database import Store
from ganglion.store.response_store import StoredEvent
from ganglion.wire.frame import Frame
from ganglion.wire.responses.stored import last_frames, named_frame

_logger = logging.getLogger("ganglion.server")

SAVE_EVENTS_S: Final = 0.5
"""How often new events are stored with the response, for readers who come late or after a restart."""
_MAX_UNSAVED_BYTES: Final = 4 * 2**20
"""What a run holds in memory while the store does not take its frames; then it fails with the store."""
_PAGE: Final = 500


class BackgroundRun:
    """One running response: the frames that are not stored yet, and a signal when more come.

    Frames that the store holds are read from there: however long an answer is, its stream does not gather in
    memory.
    """

    def __init__(self, exchange: ResponsesExchange, store: Store) -> None:
        self.exchange = exchange
        self.cancelled = asyncio.Event()
        self.over = asyncio.Event()
        self._store = store
        self._saved = 0
        self._unsaved_frames: list[Frame] = []
        self._saved_s = asyncio.get_running_loop().time()
        self._news = asyncio.Event()

    def publish(self, frames: Sequence[Frame]) -> None:
        """Add frames and wake the followers."""
        self._unsaved_frames += frames
        news, self._news = self._news, asyncio.Event()
        news.set()

    def end(self) -> None:
        """Tell the followers that no more frames come."""
        self.over.set()
        self._news.set()

    async def snapshot(self) -> bytes:
        """The response as it stands; one that has ended is given once its end is stored."""
        if self.exchange.projection.is_done:
            await self.over.wait()
        return self.exchange.projection.snapshot()

    def unsaved(self, more: Sequence[Frame] = ()) -> list[StoredEvent]:
        """What is not in the store yet, and `more` that follows it."""
        return [
            StoredEvent(self._saved + place, frame.data)
            for place, frame in enumerate((*self._unsaved_frames, *more))
        ]

    async def save_new(self) -> None:
        """Store what came, once in a while; raises when the store has refused for too long.

        When the store holds another ending already, by another server, the run is cancelled.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._saved_s < SAVE_EVENTS_S or not self._unsaved_frames:
            return
        self._saved_s = now_s
        events = self.unsaved()
        try:
            if not await self._store.append_events(self.exchange.tenant, self.exchange.id, events):
                self.cancelled.set()
        except GanglionError as error:
            _logger.warning("the events of %s were not stored: %s", self.exchange.id, error)
            if sum(len(event.frame) for event in events) > _MAX_UNSAVED_BYTES:
                raise
            return
        self._saved += len(events)
        del self._unsaved_frames[: len(events)]

    async def follow(self, after: int = -1) -> AsyncGenerator[list[Frame], None]:
        """The frames after a number, as they come, until the last; a follower who leaves does not end it."""
        next_number = after + 1
        while True:
            news = self._news
            frames = await self._frames_from(next_number)
            if frames:
                next_number += len(frames)
                yield frames
            elif self.over.is_set():
                break
            else:
                await news.wait()
        final = self.exchange.projection.final
        if next_number == after + 1 and final is not None:
            yield last_frames(final, next_number)

    async def _frames_from(self, number: int) -> list[Frame]:
        if number >= self._saved:
            return self._unsaved_frames[number - self._saved :]
        exchange = self.exchange
        kept = await self._store.events(exchange.tenant, exchange.id, after=number - 1, limit=_PAGE)
        return [named_frame(event.frame) for event in kept]


class BackgroundRuns:
    """Every response that runs in the background now."""

    def __init__(
        self, engine: Engine, service: ResponsesService, state: AppState, settings: ServerSettings
    ) -> None:
        self._engine = engine
        self._service = service
        self._state = state
        self._settings = settings
        self._runs: dict[tuple[str, str], BackgroundRun] = {}

    def get(self, tenant: str, response_id: str) -> BackgroundRun | None:
        """The run of that id, while it runs."""
        return self._runs.get((tenant, response_id))

    async def start(self, exchange: ResponsesExchange, admission: ExitStack) -> BackgroundRun:
        """Store the response as queued and run it under its request's admission; raises why it may not."""
        assert self._state.store is not None
        exchange = await self._service.reserve(exchange)
        admission.enter_context(exchange.settlement)
        run = BackgroundRun(exchange, self._state.store)
        run.publish(exchange.projection.feed(Progress("queued", 0, 1)))
        await self._service.save_begun(exchange, run.unsaved())
        self._runs[exchange.tenant, exchange.id] = run
        admission.callback(self._runs.pop, (exchange.tenant, exchange.id))
        self._state.background.start(self._carry_out(run, admission.pop_all()), f"background {exchange.id}")
        return run

    async def cancel(self, run: BackgroundRun) -> None:
        """End a run, and return once its end is stored."""
        run.cancelled.set()
        await run.over.wait()

    async def _carry_out(self, run: BackgroundRun, admission: ExitStack) -> None:
        with admission:
            try:
                *frames, last = await self._until_cancelled(run)
                run.publish(frames)
                run.publish(await self._service.save_ended(run.exchange, [last], run.unsaved([last])))
            finally:
                run.end()

    async def _until_cancelled(self, run: BackgroundRun) -> list[Frame]:
        """Answer until the run is cancelled or the server shuts down; returns the frames to end with."""
        projection = run.exchange.projection
        answering = asyncio.create_task(self._answer(run))
        cancelling = asyncio.create_task(run.cancelled.wait())
        is_shutting_down = False
        try:
            await asyncio.wait({answering, cancelling}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            is_shutting_down = True
        answering.cancel()
        cancelling.cancel()
        (answered, _) = await asyncio.gather(answering, cancelling, return_exceptions=True)
        if isinstance(answered, list):
            return answered
        if is_shutting_down:
            return projection.feed(Failed(ShuttingDown("The server is shutting down.")))
        if isinstance(answered, asyncio.CancelledError):
            return projection.cancel()
        if not isinstance(answered, GanglionError):
            _logger.error("%s failed", run.exchange.id, exc_info=answered)
            answered = ServerError("Something failed inside the server.")
        return projection.feed(Failed(answered))

    async def _answer(self, run: BackgroundRun) -> list[Frame]:
        """Publish everything but the last frames, which are returned."""
        projection = run.exchange.projection
        async with answers_to(run.exchange, self._engine) as answers:
            with closing(Alarm()) as alarm:
                while True:
                    frames: list[Frame] = []
                    try:
                        with alarm.after(self._settings.keep_alive_s):
                            taken = await answers.take()
                    except TimeoutError:
                        frames += projection.tick()
                    else:
                        for _, event in taken:
                            frames += projection.feed(event)
                    if projection.is_done:
                        return frames
                    run.publish(frames)
                    await run.save_new()
