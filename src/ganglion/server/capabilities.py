"""What an engine can do besides answering: show prompts, embed, continue sessions.

Where an engine lacks a capability, requests that need it get a 503, and nothing else changes.
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
    """An engine by what it can do; each endpoint takes what it needs."""

    engine: Engine
    reader: PromptReader
    embedder: Embedder
    sessions: SessionEngine


def capabilities_of(engine: Engine, measured: Engine | None = None) -> EngineCapabilities:
    """The capabilities of an engine; `measured` is the same engine behind deadlines and metrics."""
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
    """The reader of an engine that does not show its prompts."""

    async def read(self, request: Request) -> ReadPrompt:
        _refuse("count or show prompts")

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        _refuse("turn tokens into text")

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        _refuse("turn tokens into text")

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        _refuse("describe its tokenizer")


class _MissingEmbedder:
    """The embedder of an engine that makes no vectors."""

    async def embed(self, request: EmbedRequest) -> Embedded:
        _refuse("make embeddings")

    async def rank(self, request: RankRequest) -> Ranked:
        _refuse("rank documents")


class _MissingSessions:
    """The sessions of an engine that keeps none."""

    async def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        yield Failed(_missing_capability("keep sessions"))

    async def save_kv(self, model: str, salt: str, tokens: tuple[int, ...]) -> bytes:
        _refuse("keep sessions")

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        _refuse("keep sessions")

    async def place_image(self, model: str, data: bytes, mime: str, *, tenant: str = "") -> PlacedImage:
        _refuse("keep sessions")
