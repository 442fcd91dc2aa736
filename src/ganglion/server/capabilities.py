"""What an engine can do besides answering, each part behind its own port.

An engine that lacks a port is told so by a 503 where somebody needs it, and by nothing anywhere else.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NoReturn

from ganglion.core.engine import (
    Embedded,
    Embedder,
    EmbedRequest,
    Engine,
    PlacedImage,
    PromptReader,
    Ranked,
    RankRequest,
    ReadPrompt,
    SessionEngine,
    TokenizerInfo,
)
from ganglion.core.errors import EngineUnavailable
from ganglion.core.events import Failed, TokenEvent
from ganglion.core.request import Request, TokenRequest


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """An engine and its other ports; the doors take what they need."""

    engine: Engine
    reader: PromptReader
    embedder: Embedder
    sessions: SessionEngine


def capabilities_of(engine: Engine, measured: Engine | None = None) -> EngineCapabilities:
    """The ports of an engine; `measured` is the same engine as requests should pass it."""
    return EngineCapabilities(
        measured or engine,
        engine if isinstance(engine, PromptReader) else _MissingReader(),
        engine if isinstance(engine, Embedder) else _MissingEmbedder(),
        engine if isinstance(engine, SessionEngine) else _MissingSessions(),
    )


def _refuse(what: str) -> NoReturn:
    raise _missing_capability(what)


def _missing_capability(what: str) -> EngineUnavailable:
    return EngineUnavailable(f"The engine behind this server does not {what}.")


class _MissingReader:
    """Stands where an engine does not show its prompts."""

    async def read(self, request: Request) -> ReadPrompt:
        _refuse("count or show prompts")

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        _refuse("turn tokens into text")

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        _refuse("turn tokens into text")

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        _refuse("describe its tokenizer")


class _MissingEmbedder:
    """Stands where an engine makes no vectors."""

    async def embed(self, request: EmbedRequest) -> Embedded:
        _refuse("make embeddings")

    async def rank(self, request: RankRequest) -> Ranked:
        _refuse("rank documents")


class _MissingSessions:
    """Stands where an engine does not continue token lists."""

    async def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        yield Failed(_missing_capability("keep sessions"))

    async def save_kv(self, model: str, salt: str, tokens: tuple[int, ...]) -> bytes:
        _refuse("keep sessions")

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        _refuse("keep sessions")

    async def place_image(self, model: str, data: bytes, mime: str) -> PlacedImage:
        _refuse("keep sessions")
