"""What an engine can do besides answering, each part behind its own port.

An engine that lacks a port is told so by a 503 where somebody needs it, and by nothing anywhere else.
"""

from dataclasses import dataclass
from typing import NoReturn

from ganglion.core.engine import (
    Embedded,
    Embedder,
    EmbedRequest,
    Engine,
    PromptReader,
    Ranked,
    RankRequest,
    ReadPrompt,
    TokenizerInfo,
)
from ganglion.core.errors import EngineUnavailable
from ganglion.core.request import Request


@dataclass(frozen=True, slots=True)
class Ports:
    """An engine and its other ports; the doors take what they need."""

    engine: Engine
    reader: PromptReader
    embedder: Embedder


def ports_of(engine: Engine, measured: Engine | None = None) -> Ports:
    """The ports of an engine; `measured` is the same engine as requests should pass it."""
    return Ports(
        measured or engine,
        engine if isinstance(engine, PromptReader) else _NoReader(),
        engine if isinstance(engine, Embedder) else _NoEmbedder(),
    )


def _refuse(what: str) -> NoReturn:
    raise EngineUnavailable(f"The engine behind this server does not {what}.")


class _NoReader:
    """Stands where an engine does not show its prompts."""

    async def read(self, request: Request) -> ReadPrompt:
        _refuse("count or show prompts")

    async def detokenize(self, model: str, tokens: tuple[int, ...]) -> str:
        _refuse("turn tokens into text")

    async def pieces(self, model: str, tokens: tuple[int, ...]) -> tuple[bytes, ...]:
        _refuse("turn tokens into text")

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        _refuse("describe its tokenizer")


class _NoEmbedder:
    """Stands where an engine makes no vectors."""

    async def embed(self, request: EmbedRequest) -> Embedded:
        _refuse("make embeddings")

    async def rank(self, request: RankRequest) -> Ranked:
        _refuse("rank documents")
