"""Responses that outlive their client: each runs by itself, is heard by whoever follows, can be cancelled.

Law: the frame with the sequence number n is the n-th of its run, for every follower and across reconnects.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Final

from ganglion.core.engine import Engine
from ganglion.core.errors import GanglionError
from ganglion.server.alarm import Alarm
from ganglion.server.answers import Answers
from ganglion.server.drain import Gate
from ganglion.server.responses.desk import Desk, Exchange
from ganglion.server.settings import ServerSettings
from ganglion.store.port import Store
from ganglion.store.values import StoredEvent
from ganglion.wire.frame import Comment, Frame

logger = logging.getLogger("ganglion.server")

KEEP_EVENTS_S: Final = 0.5
"""How often what was said is put beside the response, for readers who come back after a restart."""


class Run:
    """One response as it comes: its frames so far, and word of more."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.frames: list[Frame] = []
        self.is_over = False
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def tell(self, frames: list[Frame], *, is_over: bool = False) -> None:
        """Add frames and wake whoever follows."""
        self.frames += frames
        self.is_over = self.is_over or is_over
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, after: int = -1) -> AsyncGenerator[list[Frame], None]:
        """The frames after a number, as they come, until the last."""
        told = after + 1
        while True:
            news = self._news
            if told < len(self.frames):
                fresh = self.frames[told:]
                told += len(fresh)
                yield fresh
            elif self.is_over:
                return
            else:
                await news.wait()


class Runs:
    """Every response that runs in the background now."""

    def __init__(self, engine: Engine, desk: Desk, store: Store | None, gate: Gate, settings: ServerSettings):
        self._engine = engine
        self._desk = desk
        self._store = store
        self._gate = gate
        self._settings = settings
        self._runs: dict[tuple[str, str], Run] = {}

    def get(self, tenant: str, response_id: str) -> Run | None:
        """The run of that id, while it runs."""
        return self._runs.get((tenant, response_id))

    async def start(self, exchange: Exchange) -> Run:
        """Keep the response as queued and let it run; raises when it cannot be kept or let in."""
        admitted = self._gate.admit()
        admitted.__enter__()
        try:
            await self._desk.begin(exchange)
        except BaseException:
            admitted.__exit__(None, None, None)
            raise
        run = Run(exchange)
        self._runs[exchange.tenant, exchange.id] = run
        run.task = asyncio.create_task(self._carry_out(run), name=f"background {exchange.id}")

        def leave(_: asyncio.Task[None]) -> None:
            admitted.__exit__(None, None, None)
            self._runs.pop((exchange.tenant, exchange.id), None)

        run.task.add_done_callback(leave)
        return run

    async def cancel(self, run: Run) -> None:
        """End a run here, and return once that is kept."""
        assert run.task is not None
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)

    async def _carry_out(self, run: Run) -> None:
        exchange = run.exchange
        saved = Saved(run, self._store)
        try:
            async with Answers(self._engine, (exchange.call.request,)) as answers:
                await self._answer(run, answers, saved)
        except asyncio.CancelledError:
            run.tell(exchange.projection.cancel(), is_over=True)
            try:
                await self._desk.cancel(exchange, saved.rest())
            except GanglionError as error:
                logger.error("%s could not be stored as cancelled: %s", exchange.id, error.message)

    async def _answer(self, run: Run, answers: Answers, saved: "Saved") -> None:
        projection = run.exchange.projection
        with closing(Alarm()) as alarm:
            while not run.is_over:
                frames: list[Frame] = []
                try:
                    with alarm.after(self._settings.keep_alive_s):
                        for _, event in await answers.take():
                            frames += projection.feed(event)
                except TimeoutError:
                    frames += projection.tick()
                if projection.is_done:
                    run.tell(await self._end(run, frames, saved), is_over=True)
                else:
                    run.tell(frames)
                    await saved.keep_up()

    async def _end(self, run: Run, frames: list[Frame], saved: "Saved") -> list[Frame]:
        told = await self._desk.end(run.exchange, frames, saved.rest(frames))
        return [frame for frame in told if not isinstance(frame, Comment)]


class Saved:
    """How much of a run's stream is in the store."""

    def __init__(self, run: Run, store: Store | None) -> None:
        self._run = run
        self._store = store
        self._count = 0
        self._saved_s = asyncio.get_running_loop().time()

    def rest(self, more: list[Frame] | None = None) -> list[StoredEvent]:
        """What is not in the store yet, and `more` that follows it."""
        frames = [*self._run.frames[self._count :], *(more or [])]
        return [StoredEvent(self._count + place, frame.data) for place, frame in enumerate(frames)]

    async def keep_up(self) -> None:
        """Store what came, once in a while; a store that fails now is tried again at the end."""
        now_s = asyncio.get_running_loop().time()
        if self._store is None or now_s - self._saved_s < KEEP_EVENTS_S:
            return
        exchange, events = self._run.exchange, self.rest()
        try:
            if events and await self._store.append_events(exchange.tenant, exchange.id, events):
                self._count += len(events)
        except GanglionError as error:
            logger.warning("events of %s were not stored: %s", exchange.id, error.message)
        self._saved_s = now_s
