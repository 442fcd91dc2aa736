"""A reader of prompts before which the images that a request names by an address are fetched."""

from dataclasses import replace

from ganglion.core.engine import Engine, PromptReader, ReadPrompt, TokenizerInfo
from ganglion.core.request import Request
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.images.image_fetcher import ImageFetcher


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
