"""An engine whose requests have their images: fetched where an address named them, within bounded memory."""

from collections.abc import AsyncGenerator
from functools import partial

from ganglion.core.attachments import attachments_of
from ganglion.core.delivery import Delivery, Sink, generate_into, give, pulled
from ganglion.core.engine import Engine, ModelState
from ganglion.core.errors import GanglionError
from ganglion.core.events import Event, Failed
from ganglion.core.request import Request
from ganglion.server.images.image_fetcher import ImageFetcher
from ganglion.server.images.image_memory import ImageMemory


class ImageEngine:
    """The inner engine, over requests whose files are here; without a fetcher addresses are passed on."""

    def __init__(
        self, inner: Engine, fetcher: ImageFetcher | None = None, memory: ImageMemory | None = None
    ) -> None:
        self._inner = inner
        self._fetcher = fetcher
        self._memory = memory or ImageMemory()

    def models(self) -> tuple[ModelState, ...]:
        """The inner engine's."""
        return self._inner.models()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The inner engine's answer."""
        return pulled(partial(self.generate_into, request))

    def generate_into(self, request: Request, sink: Sink[Event]) -> Delivery:
        """Deliver the inner engine's answer."""
        if not attachments_of(request.prompt):
            return generate_into(self._inner, request, sink)
        return self._held_into(request, sink)

    async def _held_into(self, sent: Request, sink: Sink[Event]) -> None:
        # Held by the prompt as it was sent, which the choices of a call share.
        try:
            request = sent
            if self._fetcher is not None:
                request = await self._fetcher.fetched(sent, self._inner.models())
            self._memory.hold(sent, request)
        except GanglionError as error:
            await give(sink, Failed(error))
            return
        try:
            await generate_into(self._inner, request, sink)
        finally:
            self._memory.release(sent)
