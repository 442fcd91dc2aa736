"""The requests to sessions and their results, independent of any wire."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from ganglion.core.engine import ReadoutManifest
from ganglion.core.events import FinishReason, Progress, Token
from ganglion.core.request import Constraint, Ranges, Steering
from ganglion.core.sampling import Sampling


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A fresh session, and the model that its name meant."""

    session_id: str
    model: str
    context_length: int
    vocabulary_size: int
    ttl_s: float
    readout: ReadoutManifest | None = None
    end_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One call that appends and generates; `max_tokens` 0 only appends."""

    append: tuple[int, ...] = ()
    offset: int = 0
    is_truncating: bool = False
    max_tokens: int = 0
    logprobs: Ranges = ()
    top: int = 0
    readout: Ranges = ()
    sampling: Sampling = Sampling()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0
    stop_strings: tuple[str, ...] = ()
    constraint: Constraint | None = None
    prefix: str = ""
    """What the generated text begins with, in whatever tokens."""


@dataclass(frozen=True, slots=True)
class SessionToken:
    """A token: one that was generated now, or one of the session that lies in a range."""

    token: Token
    is_prefill: bool


@dataclass(frozen=True, slots=True)
class GenerationDone:
    """How a call ended, and the session's length now."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    total_tokens: int
    reason: FinishReason
    stop_token: int | None = None
    stop_text: str | None = None
    stop_start: int | None = None
    """The position of the first token that has a part of the stop text."""


SessionEvent = SessionToken | Progress | GenerationDone


@dataclass(frozen=True, slots=True)
class AppendedImage:
    """An image that was appended."""

    count: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class ForkedSession:
    """A session that begins like another."""

    session_id: str
    total_tokens: int


@dataclass(frozen=True, slots=True)
class TokenPage:
    """A part of a session's tokens, PLACEHOLDER where an image is, and how many it has in all."""

    tokens: tuple[int, ...]
    total_tokens: int


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session as its owner sees it in a list.

    Apart from the client's `SessionInfo`, which is public and must not change with the server.
    """

    session_id: str
    model: str
    total_tokens: int
    image_count: int
    idle_s: float
    ttl_s: float
    is_busy: bool
    is_suspended: bool
    steering: Steering = ()


@dataclass(frozen=True, slots=True)
class RestoredSession:
    """A session that came back, and of how many of its tokens the KV did."""

    session_id: str
    model: str
    total_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class SuspendedSession:
    """A session that is on disk."""

    total_tokens: int
    size_bytes: int


class SessionService(Protocol):
    """Every tenant's sessions; all methods raise GanglionErrors.

    Errors about a session that exists carry its length in `extras["session_length"]`.
    """

    async def open(
        self, tenant: str, model: str, *, ttl_s: float | None = None, steering: Steering = ()
    ) -> OpenedSession:
        """A fresh, empty session."""

    def generate(
        self, tenant: str, session_id: str, request: GenerationRequest
    ) -> AsyncGenerator[SessionEvent, None]:
        """Append and generate; closing it stops the work, and what was committed stays."""

    async def append_image(
        self, tenant: str, session_id: str, data: bytes, mime: str, *, offset: int, is_truncating: bool
    ) -> AppendedImage:
        """Append an image as the model reads it."""

    async def fork(
        self, tenant: str, session_id: str, *, at: int | None = None, ttl_s: float | None = None
    ) -> ForkedSession:
        """Another session that begins with the same tokens."""

    async def truncate(self, tenant: str, session_id: str, length: int) -> int:
        """Drop everything from a position on; returns the length."""

    async def tokens(self, tenant: str, session_id: str, *, offset: int, limit: int) -> TokenPage:
        """Some of a session's tokens, also of one that is busy."""

    def sessions(self, tenant: str) -> tuple[SessionSummary, ...]:
        """A tenant's own sessions."""

    async def close_session(self, tenant: str, session_id: str) -> None:
        """Close a session; a call that runs in it ends."""

    async def save(self, tenant: str, session_id: str, *, with_kv: bool) -> bytes:
        """The session as bytes."""

    async def restore(self, tenant: str, saved: bytes) -> RestoredSession:
        """A session from such bytes."""

    async def suspend(self, tenant: str, session_id: str) -> SuspendedSession:
        """Put a session on disk until it is named again."""
