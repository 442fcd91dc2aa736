"""The answers to one call as one stream: n deliveries, to one reader or through a bounded list.

Law: leaving the context ends every delivery, and each choice ends with `Finished` or `Failed`, also
when an engine breaks off or raises.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from ganglion.core.delivery import Room, generate_into
from ganglion.core.engine import Engine
from ganglion.core.errors import EngineFailed
from ganglion.core.events import Delta, Event, Failed, Finished, Started, Usage
from ganglion.core.fold import Answer, fold
from ganglion.core.request import Request
from ganglion.server.middleware.principal import ANONYMOUS, Principal
from ganglion.wire.fleet import encode_usage
from ganglion.wire.frame import Comment
from ganglion.wire.headers import USAGE


@dataclass(slots=True)
class _ChoiceUsage:
    """The usage of one answer so far."""

    usage: Usage | None = None
    is_finished: bool = False
    tokens: int = 0
    deltas: int = 0

    def so_far(self) -> Usage | None:
        if self.usage is None or self.is_finished:
            return self.usage
        # An engine that does not name its tokens sends about one with each delta.
        return Usage(self.usage.prompt_tokens, self.tokens or self.deltas, self.usage.cached_tokens)


@dataclass(slots=True)
class _UsageCounter:
    """Adds up the usage of all choices; one that failed counts with what it took until then."""

    requests: Sequence[Request]
    _choices: list[_ChoiceUsage] = field(init=False)

    def __post_init__(self) -> None:
        self._choices = [_ChoiceUsage() for _ in self.requests]

    def record(self, choice: int, event: Event) -> None:
        """Count the next event of a choice."""
        of_choice = self._choices[choice]
        match event:
            case Delta(tokens=tokens):
                of_choice.tokens += len(tokens)
                of_choice.deltas += 1
            case Started(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens):
                of_choice.usage = Usage(prompt_tokens, 0, cached_tokens)
            case Finished(usage=usage):
                of_choice.usage, of_choice.is_finished = usage, True
            case _:
                pass

    def total(self) -> Usage | None:
        """The sum; a prompt that several choices share counts once. None where nothing ran."""
        prompts: dict[int, list[Usage]] = {}
        for request, choice in zip(self.requests, self._choices, strict=True):
            usage = choice.so_far()
            if usage is not None:
                prompts.setdefault(id(request.prompt), []).append(usage)
        if not prompts:
            return None
        every = [usage for shared in prompts.values() for usage in shared]
        return Usage(
            prompt_tokens=sum(max(usage.prompt_tokens for usage in shared) for shared in prompts.values()),
            completion_tokens=sum(usage.completion_tokens for usage in every),
            cached_tokens=sum(min(usage.cached_tokens for usage in shared) for shared in prompts.values()),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in every),
        )


_logger = logging.getLogger("ganglion.server")

# Enough to join a burst into one write; small, so that a client that stops reading stops its engine.
_UNREAD_EVENTS = 64

ChoiceSink = Callable[[int, Sequence[Event]], Room]
"""Takes the next events of a choice, as every sink does, but for that several choices may call it."""


class Answers:
    """Runs the requests of one call at the same time and hands out their events, by choice.

    `principal` is whose they are; `at_once` bounds how many run at the same time, the others wait.
    `is_folded` promises the engine that nothing is sent before the answer is whole.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[Request],
        *,
        principal: Principal = ANONYMOUS,
        at_once: int | None = None,
        is_folded: bool = False,
    ) -> None:
        self._engine = engine
        self._requests = [principal.bounded(request) for request in requests]
        if is_folded:
            self._requests = [replace(request, is_folded=True) for request in self._requests]
        self._usage_counter = _UsageCounter(self._requests) if principal.wants_usage else None
        self._reader: ChoiceSink | None = None
        self._unread: list[tuple[int, Event]] = []
        self._arrived: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """Done once what is unread has been read; None while there is room."""
        self._runs: list[asyncio.Task[None]] = []
        self._turns = asyncio.Semaphore(at_once or len(requests))

    async def __aenter__(self) -> Self:
        self._runs = [
            asyncio.create_task(self._run(choice, request)) for choice, request in enumerate(self._requests)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A run that is cancelled holds its frames, and they this: nothing here is to hold the run.
        runs, self._runs = self._runs, []
        self._reader = None
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    async def take(self) -> list[tuple[int, Event]]:
        """Wait for the next event, and take every other that is already there."""
        if not self._unread:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        batch, self._unread = self._unread, []
        self._make_room()
        return batch

    def deliver_to(self, reader: ChoiceSink) -> None:
        """From now on hand events to a reader in the call that brings them, what is unread first."""
        unread, self._unread = self._unread, []
        for choice, event in unread:
            reader(choice, (event,))
        self._reader = reader
        self._make_room()

    async def whole(self) -> list[Answer]:
        """Wait for every choice's answer; raises the first failure."""
        events: list[list[Event]] = [[] for _ in self._requests]
        waiting = len(events)
        while waiting:
            for choice, event in await self.take():
                events[choice].append(event)
                if isinstance(event, Failed):
                    raise event.error
                waiting -= isinstance(event, Finished)
        return [fold(of_choice) for of_choice in events]

    def usage(self) -> Usage | None:
        """The usage so far, for a gateway that asks for it; None where nothing ran."""
        return None if self._usage_counter is None else self._usage_counter.total()

    def usage_comments(self) -> list[Comment]:
        """The comment after a stream's last frame: its usage, for a gateway that asks for it."""
        usage = self.usage()
        return [] if usage is None else [Comment(f"{USAGE.decode()} {encode_usage(usage).decode()}")]

    async def _run(self, choice: int, request: Request) -> None:
        has_ended = False

        def sink(events: Sequence[Event]) -> Room:
            nonlocal has_ended
            has_ended = isinstance(events[-1], Finished | Failed)
            if self._usage_counter is not None:
                for event in events:
                    self._usage_counter.record(choice, event)
            if self._reader is not None:
                return self._reader(choice, events)
            return self._keep(choice, events)

        try:
            async with self._turns:
                await generate_into(self._engine, request, sink)
            failure = "The engine ended its answer without saying how."
        except Exception:
            _logger.exception("an engine raised, request_id=%s", request.id)
            failure = "The engine failed under this request."
        if not has_ended:
            sink((Failed(EngineFailed(failure)),))

    def _keep(self, choice: int, events: Sequence[Event]) -> Room:
        self._unread += [(choice, event) for event in events]
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        if self._room is None and len(self._unread) >= _UNREAD_EVENTS:
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)
