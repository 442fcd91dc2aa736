"""The ports: everything that answers is an Engine, and under it lie tokens.

Law: `generate()` and `run()` return async generators, and closing one *is* cancellation: whatever it held is
given back before `aclose()` returns or soon after. Errors are `Failed` events, also before the first token;
these generators raise only on bugs.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from ganglion.core.events import Event, TokenEvent
from ganglion.core.request import Request, TokenRequest

Status = Literal["unloaded", "downloading", "loading", "loaded", "draining", "recovering", "failed"]


@dataclass(frozen=True, slots=True)
class ModelState:
    """One model as its engine sees it now."""

    id: str
    engine: str
    status: Status
    context_length: int
    created_s: int
    """When the model was configured or its file last changed, seconds since the epoch."""
    aliases: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    memory_mb: int = 0
    in_flight: int = 0
    queued: int = 0
    kv_used: int = 0
    kv_total: int = 0
    slots_used: int = 0
    slots_total: int = 0
    restarts: int = 0
    step_s: float = 0.0
    """Seconds that the worker spent on steps, and of these inside the native library."""
    native_s: float = 0.0
    error: str | None = None


class Engine(Protocol):
    """Anything that answers requests: one model, a set of them, a remote server, a fleet."""

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer one request as an event stream."""
        ...

    def models(self) -> tuple[ModelState, ...]:
        """Every model that could be asked for by name, cheaply and without blocking."""
        ...


class ManagedEngine(Engine, Protocol):
    """An engine that holds processes or memory between requests."""

    async def open(self) -> None:
        """Start; returns once requests can be answered or raises why they cannot."""
        ...

    async def close(self) -> None:
        """Stop and give everything back; running requests end with `Failed`."""
        ...


class TokenEngine(Protocol):
    """Token ids in, token events out."""

    def run(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Continue one token list."""
        ...

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """Text to ids; `parse_special` reads control tokens written out in the text."""
        ...
