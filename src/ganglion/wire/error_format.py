"""The format in which a wire says that a request failed, or that it is still worked on."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from ganglion.core.errors import GanglionError, InvalidApiKey
from ganglion.wire.frame import Comment, sse
from ganglion.wire.headers import RETRY_AFTER


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """The errors of one wire; node and gateway write them alike."""

    encode: Callable[[GanglionError, str], bytes]
    """The body of a response that is nothing but an error; the second argument is the request's id."""
    encode_event: Callable[[GanglionError, str], bytes]
    """What ends a stream that broke; nothing else may follow it."""
    status_of: Callable[[GanglionError], int] = attrgetter("status")
    keep_alive: bytes | None = sse(Comment())
    """What says that a stream is still to come, before or between its events; None where nothing can."""
    has_codes: bool = True
    """Whether a body names the error's code, and not only its status."""


def error_headers(error: GanglionError) -> dict[str, str]:
    """The headers that go with the status of an error, on every wire."""
    headers = {} if error.retry_after_s is None else {RETRY_AFTER: str(error.retry_after_s)}
    return headers | {"www-authenticate": "Bearer"} if isinstance(error, InvalidApiKey) else headers
