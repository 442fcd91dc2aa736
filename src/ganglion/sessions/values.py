"""The requests to sessions and their results, independent of any wire."""

from dataclasses import dataclass

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
