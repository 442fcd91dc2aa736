"""The errors that the client raises: the server's own, rebuilt from their status, and two of its own.

GanglionError                 everything below; `code` is stable, `hint` says what to do
├── SessionDivergence         the chunks given to `run()` are not a continuation of the session
├── Disconnected              the node cannot be reached, or went away
└── the server's tree         `ganglion.core.errors`: SessionDrift, SessionNotFound, SessionBusy, …
"""

from collections.abc import Mapping
from typing import Final, Literal

from ganglion.core.errors import (
    DeadlineExceeded,
    GanglionError,
    InvalidApiKey,
    InvalidRequest,
    NotAllowed,
    RateLimited,
    RouteNotFound,
    ServerError,
    rebuild,
)
from ganglion.wire.salience.error_metadata import CODE, decode_metadata

_NEVER_SENT: Final = "failed to connect to all addresses"
_IS_THE_NODE_RUNNING: Final = "Is the node running? `ganglion serve` starts one."

Divergence = Literal["straddles", "unknown", "short", "differs"]


class SessionDivergence(InvalidRequest, status=409, code="session_divergence", grpc="FAILED_PRECONDITION"):
    """The chunks are not a continuation of what the session holds; nothing was sent, nothing changed.

    `reason` says how: a chunk *straddles* the committed length, a chunk of *unknown* length is before it, the
    chunks end *short* of it, or tokens before it *differ*. `chunk` is the index of the first such chunk (the
    number of chunks, where they are short), `position` where it begins, `committed` the session's length.
    Truncate the session to `position` to go on from there, or `reset()` it to send everything.
    """

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


class Disconnected(ServerError, status=502, code="disconnected", grpc="UNAVAILABLE"):
    """The node cannot be reached, or went away before its answer was complete."""


class Unreachable(Disconnected):
    """No server listens at the node's address: nothing of the call was sent."""


def error_from_status(status: str, details: str, metadata: Mapping[str, str]) -> GanglionError:
    """The error that a call ended with, from its status' name, its details and its trailing metadata."""
    if CODE not in metadata:
        return _error_without_code(status, details)
    return decode_metadata(metadata, details, _BY_STATUS.get(status, ServerError))


def _error_without_code(status: str, details: str) -> GanglionError:
    if status == "DEADLINE_EXCEEDED":
        return rebuild(DeadlineExceeded, f"The node was too slow: {details}", hint="Raise timeout_s.")
    if status in ("UNAVAILABLE", "CANCELLED"):
        # gRPC's own message is the only sign that distinguishes a call that was never sent from a lost one.
        kind = Unreachable if details.startswith(_NEVER_SENT) else Disconnected
        return kind(f"The node cannot be reached: {details}", hint=_IS_THE_NODE_RUNNING)
    return rebuild(_BY_STATUS.get(status, ServerError), f"{status}: {details}")


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
