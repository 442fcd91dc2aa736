"""Metrics and deadlines around an engine: every stream is counted and timed, and ends in time."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from ganglion.core.delivery import Room, Sink, generate_into, pulled
from ganglion.core.engine import Engine, ModelState, PlacedImage, SessionEngine, find_model
from ganglion.core.events import Delta, Event, Failed, Finished, Pieces, Started, TokenEvent
from ganglion.core.request import Request, TokenRequest
from ganglion.server.deadlines import deliver_in_time, with_deadlines
from ganglion.server.prometheus import Metrics, ModelMetrics
from ganglion.server.settings import AnswerDeadlines

_E = TypeVar("_E", Event, TokenEvent)

# Clients choose the model's name in a request: names that no engine knows share one label.
_UNKNOWN_MODEL = "unknown"


class ObservedEngine:
    """The inner engine, with every stream counted, timed and under deadlines."""

    def __init__(self, inner: Engine, metrics: Metrics, deadlines: AnswerDeadlines) -> None:
        self._inner = inner
        self._metrics = metrics
        self._deadlines = deadlines

    def models(self) -> tuple[ModelState, ...]:
        """The inner engine's."""
        return self._inner.models()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The inner engine's answer under the deadlines, measured."""
        return pulled(partial(self.generate_into, request))

    async def generate_into(self, request: Request, sink: Sink[Event]) -> None:
        """Deliver the inner engine's answer under the deadlines, measured."""
        watch = _StreamStopwatch(self._metrics_of(request.model))

        def record(events: Sequence[Event]) -> Room:
            for event in events:
                watch.record(event)
            return sink(events)

        try:
            await deliver_in_time(partial(generate_into, self._inner, request), self._deadlines, record)
        finally:
            watch.end()

    def _metrics_of(self, name: str) -> ModelMetrics:
        """A model's metrics; whoever was counted under this very name is not looked for again."""
        known = self._metrics.by_model.get(name)
        return known or self._metrics.of_model(_metrics_label(self._inner.models(), name))


def _metrics_label(models: Iterable[ModelState], name: str) -> str:
    """The label under which a request for this name is counted."""
    found = find_model(models, name)
    return _UNKNOWN_MODEL if found is None else found.id


async def _observed_stream(
    events: AsyncGenerator[_E, None], metrics: ModelMetrics
) -> AsyncGenerator[_E, None]:
    """A stream unchanged, counted and timed; closes what it reads."""
    watch = _StreamStopwatch(metrics)
    try:
        async with aclosing(events):
            async for event in events:
                watch.record(event)
                yield event
    finally:
        watch.end()


class _StreamStopwatch:
    """Times and counts one stream."""

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._began_s = time.perf_counter()
        self._last_s: float | None = None
        self._outcome = "cancelled"
        self._prompt_tokens = 0
        metrics.in_flight.inc()

    def record(self, event: Event | TokenEvent) -> None:
        match event:
            case Delta() | Pieces():
                self._delta(time.perf_counter())
            case Started(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens):
                self._prompt_tokens = prompt_tokens
                self._metrics.prompt_tokens.inc(prompt_tokens)
                self._metrics.cached_tokens.inc(cached_tokens)
            case Finished(reason=reason, usage=usage):
                self._outcome = reason
                if not self._prompt_tokens:  # another server's answer: its prompt is counted at the end
                    self._metrics.prompt_tokens.inc(usage.prompt_tokens)
                    self._metrics.cached_tokens.inc(usage.cached_tokens)
                self._metrics.completion_tokens.inc(usage.completion_tokens)
            case Failed(error=error):
                self._outcome = error.code
            case _:
                pass

    def _delta(self, now_s: float) -> None:
        if self._last_s is None:
            self._metrics.first_token_s.observe(now_s - self._began_s)
        else:
            self._metrics.between_tokens_s.observe(now_s - self._last_s)
        self._last_s = now_s

    def end(self) -> None:
        self._metrics.in_flight.dec()
        self._metrics.requests.labels(self._metrics.model, self._outcome).inc()


class ObservedSessions:
    """The inner engine, with its streams measured and under deadlines like all answers."""

    def __init__(
        self,
        inner: SessionEngine,
        deadlines: AnswerDeadlines,
        metrics: Metrics,
        models: Callable[[], tuple[ModelState, ...]],
    ) -> None:
        self._inner = inner
        self._models = models
        self._deadlines = deadlines
        self._metrics = metrics

    def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """The inner engine's stream under the deadlines, measured."""
        events = with_deadlines(self._inner.continue_tokens(model, request), self._deadlines)
        return _observed_stream(events, self._metrics.of_model(_metrics_label(self._models(), model)))

    async def save_kv(self, model: str, salt: str, tokens: tuple[int, ...]) -> bytes:
        """The inner engine's."""
        return await self._inner.save_kv(model, salt, tokens)

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        """The inner engine's."""
        return await self._inner.load_kv(model, salt, tokens, state)

    async def place_image(self, model: str, data: bytes, mime: str, *, tenant: str = "") -> PlacedImage:
        """The inner engine's."""
        return await self._inner.place_image(model, data, mime, tenant=tenant)
