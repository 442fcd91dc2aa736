"""The answers to one call as one stream: n generators merged through a bounded queue.

Law: leaving the context closes every generator, and each choice ends with `Finished` or `Failed`, also
when an engine breaks off or raises.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

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
_QUEUED_EVENTS = 64

_ChoiceEvent = tuple[int, Event]


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
        self._queue: asyncio.Queue[_ChoiceEvent] = asyncio.Queue(_QUEUED_EVENTS)
        self._pumps: list[asyncio.Task[None]] = []
        self._turns = asyncio.Semaphore(at_once or len(requests))

    async def __aenter__(self) -> Self:
        self._pumps = [
            asyncio.create_task(self._pump(choice, request)) for choice, request in enumerate(self._requests)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A pump that is cancelled holds its frames, and they this: nothing here is to hold the pump.
        pumps, self._pumps = self._pumps, []
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def take(self) -> list[_ChoiceEvent]:
        """Wait for the next event, and take every other that is already there."""
        batch = [await self._queue.get()]
        while not self._queue.empty():
            batch.append(self._queue.get_nowait())
        return batch

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

    async def _pump(self, choice: int, request: Request) -> None:
        try:
            async with self._turns, aclosing(self._engine.generate(request)) as events:
                async for event in events:
                    if self._usage_counter is not None:
                        self._usage_counter.record(choice, event)
                    await self._queue.put((choice, event))
                    if isinstance(event, Finished | Failed):
                        return
            failure = EngineFailed("The engine ended its answer without saying how.")
        except Exception:
            _logger.exception("an engine raised, request_id=%s", request.id)
            failure = EngineFailed("The engine failed under this request.")
        await self._queue.put((choice, Failed(failure)))
