"""A SessionEngine that gives another one only so much time, and measures it."""

from collections.abc import AsyncGenerator, Callable

from ganglion.core.engine import ModelState, PlacedImage, SessionEngine
from ganglion.core.events import TokenEvent
from ganglion.core.request import TokenRequest
from ganglion.server.deadlines import cut
from ganglion.server.metrics import Metrics
from ganglion.server.observe import label_of, watched
from ganglion.server.settings import Deadlines


class MeasuredSessions:
    """The inner engine, its streams counted among all answers and under the same deadlines."""

    def __init__(
        self,
        inner: SessionEngine,
        deadlines: Deadlines,
        metrics: Metrics,
        models: Callable[[], tuple[ModelState, ...]],
    ) -> None:
        self._inner = inner
        self._models = models
        self._deadlines = deadlines
        self._metrics = metrics

    def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """The inner engine's stream, cut short when it must be."""
        events = cut(self._inner.continue_tokens(model, request), self._deadlines)
        return watched(events, self._metrics.of_model(label_of(self._models(), model)))

    async def save_kv(self, model: str, salt: str, tokens: tuple[int, ...]) -> bytes:
        """The inner engine's."""
        return await self._inner.save_kv(model, salt, tokens)

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        """The inner engine's."""
        return await self._inner.load_kv(model, salt, tokens, state)

    async def place_image(self, model: str, data: bytes, mime: str) -> PlacedImage:
        """The inner engine's."""
        return await self._inner.place_image(model, data, mime)
