"""What the client raises: the server's own errors, rebuilt from their status, and two of its own.

GanglionError                 everything below; `code` is stable, `hint` says what to do
├── SessionDivergence         the chunks given to `run()` are not a continuation of the session
├── Disconnected              the node cannot be reached, or went away
└── the server's tree         `ganglion.core.errors`: SessionDrift, SessionNotFound, SessionBusy, …
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal
from urllib.parse import unquote

from ganglion.core.errors import (
    DeadlineExceeded,
    Extra,
    GanglionError,
    InvalidApiKey,
    InvalidRequest,
    NotAllowed,
    RateLimited,
    RouteNotFound,
    ServerError,
)

CODE: Final = "ganglion-code"
SESSION_LENGTH: Final = "ganglion-session-length"
HINT: Final = "ganglion-hint"
PARAM: Final = "ganglion-param"
RETRY_AFTER: Final = "retry-after"
NEVER_SENT: Final = "failed to connect to all addresses"
IS_THE_NODE_RUNNING: Final = "Is the node running? `ganglion serve` starts one."

Divergence = Literal["straddles", "unknown", "short", "differs"]


class SessionDivergence(InvalidRequest):
    """The chunks are not a continuation of what the session holds; nothing was sent, nothing changed.

    `reason` says how: a chunk *straddles* the committed length, a chunk of *unknown* length lies before it,
    the chunks end *short* of it, or tokens before it *differ*. `chunk` is the index of the one that is meant
    (how many there are, where they are short), `position` where it begins, `committed` the session's length.
    Truncate the session to `position` to go on from there, or `reset()` it to send everything.
    """

    status = 409
    code = "session_divergence"
    grpc = "FAILED_PRECONDITION"

    def __init__(
        self, reason: Divergence, message: str, *, chunk: int, position: int, committed: int
    ) -> None:
        super().__init__(
            message,
            param="chunks",
            hint=f"Call truncate({position}) to rewrite history from there, or reset() to send everything.",
        )
        self.reason = reason
        self.chunk = chunk
        self.position = position
        self.committed = committed


class Disconnected(ServerError):
    """The node cannot be reached, or went away before its answer was complete."""

    status = 502
    code = "disconnected"
    grpc = "UNAVAILABLE"


class Unreachable(Disconnected):
    """Nobody listens where the node should be: nothing of the call was sent."""


def error_from_status(status: str, details: str, metadata: Mapping[str, str]) -> GanglionError:
    """The error that a call ended with, from its status' name, its details and its trailing metadata."""
    code = metadata.get(CODE)
    if code is None:
        return _error_without_code(status, details)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ServerError)
    error = _make(
        kind,
        details,
        param=_unquoted(metadata.get(PARAM)),
        hint=_unquoted(metadata.get(HINT)),
        extras=_extras(metadata),
    )
    error.code = code
    if metadata.get(RETRY_AFTER, "").isdecimal():
        error.retry_after_s = int(metadata[RETRY_AFTER])
    return error


def _error_without_code(status: str, details: str) -> GanglionError:
    if status == "DEADLINE_EXCEEDED":
        return _make(DeadlineExceeded, f"The node was too slow: {details}", hint="Raise timeout_s.")
    if status in ("UNAVAILABLE", "CANCELLED"):
        # gRPC's own words are the only sign by which a call that was never sent is told from a lost one.
        kind = Unreachable if details.startswith(NEVER_SENT) else Disconnected
        return kind(f"The node cannot be reached: {details}", hint=IS_THE_NODE_RUNNING)
    return _make(_BY_STATUS.get(status, ServerError), f"{status}: {details}")


def _make(
    kind: type[GanglionError],
    message: str,
    *,
    param: str | None = None,
    hint: str | None = None,
    extras: dict[str, Extra] | None = None,
) -> GanglionError:
    # Not through the class's own __init__: what it would say was said by the server already.
    error = kind.__new__(kind)
    GanglionError.__init__(error, message, param=param, hint=hint, extras=extras)
    return error


def _unquoted(value: str | None) -> str | None:
    # Metadata is ASCII: the server percent-encodes what is not.
    return None if value is None else unquote(value)


def _extras(metadata: Mapping[str, str]) -> dict[str, Extra]:
    length = metadata.get(SESSION_LENGTH, "")
    return {"session_length": int(length)} if length.isdecimal() else {}


def _tree(kind: type[GanglionError]) -> Iterator[type[GanglionError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


# Where a class and its child share a code, the child comes later and is the exact one.
_BY_CODE: Final = {
    kind.code: kind for kind in _tree(GanglionError) if kind.__module__ == GanglionError.__module__
}

_BY_STATUS: Final[dict[str, type[GanglionError]]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "NOT_FOUND": InvalidRequest,
    "FAILED_PRECONDITION": InvalidRequest,
    "OUT_OF_RANGE": InvalidRequest,
    "ABORTED": InvalidRequest,
    "UNAUTHENTICATED": InvalidApiKey,
    "PERMISSION_DENIED": NotAllowed,
    "RESOURCE_EXHAUSTED": RateLimited,
    "UNIMPLEMENTED": RouteNotFound,
}
