"""An engine, and a reader of prompts, whose requests have their images fetched before the inner one sees them."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

from ganglion.core.attachments import attachments_of
from ganglion.core.delivery import Sink, generate_into, give, pulled
from ganglion.core.engine import Engine, ModelState, PromptReader, ReadPrompt, TokenizerInfo
from ganglion.core.errors import GanglionError
from ganglion.core.events import Event, Failed
from ganglion.core.request import Request
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.images.image_fetcher import ImageFetcher


class FetchingEngine:
    """The inner engine, with the images of its requests fetched."""

    def __init__(self, inner: Engine, fetcher: ImageFetcher) -> None:
        self._inner = inner
        self._fetcher = fetcher

    def models(self) -> tuple[ModelState, ...]:
        """The inner engine's."""
        return self._inner.models()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The inner engine's answer."""
        return pulled(partial(self.generate_into, request))

    async def generate_into(self, request: Request, sink: Sink[Event]) -> None:
        """Deliver the inner engine's answer."""
        if attachments_of(request.prompt):
            try:
                request = await self._fetcher.fetched(request, self._inner.models())
            except GanglionError as error:
                await give(sink, Failed(error))
                return
        await generate_into(self._inner, request, sink)


def with_images_fetched(capabilities: EngineCapabilities, fetcher: ImageFetcher) -> EngineCapabilities:
    """The same capabilities, with a reader whose prompts have their images; the engine is wrapped already."""
    reader = FetchingReader(capabilities.reader, capabilities.engine, fetcher)
    return replace(capabilities, reader=reader)


class FetchingReader:
    """The inner engine's prompts, with their images fetched."""

    def __init__(self, inner: PromptReader, engine: Engine, fetcher: ImageFetcher) -> None:
        self._inner = inner
        self._engine = engine
        self._fetcher = fetcher

    async def read(self, request: Request) -> ReadPrompt:
        """The prompt as the inner engine reads it."""
        return await self._inner.read(await self._fetcher.fetched(request, self._engine.models()))

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        """The inner engine's."""
        return await self._inner.detokenize(model, tokens, tenant=tenant)

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        """The inner engine's."""
        return await self._inner.pieces(model, tokens, tenant=tenant)

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        """The inner engine's."""
        return await self._inner.tokenizer_info(model)
