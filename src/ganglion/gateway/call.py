"""One request as its client sent it.

Reason for a struct, here and in all that is made for each request: a frozen dataclass takes far longer.
"""

from msgspec import Struct

from ganglion.core.errors import GanglionError
from ganglion.gateway.routes import Target
from ganglion.gateway.upstream import Headers

_BEARER = b"bearer "
NOWHERE = Target(b"/", b"", b"/")


class Call(Struct):
    """A whole request, or the reason why there is none."""

    method: bytes
    target: Target
    headers: Headers = []
    """Names in lower case."""
    named: dict[bytes, bytes] = {}
    """The same by name, the last of each."""
    body: bytes = b""
    is_kept: bool = False
    """Whether another request may follow on the connection."""
    is_old: bool = False
    """HTTP/1.0: no chunks, and closed unless it says otherwise."""
    is_socket: bool = False
    """It asks for a WebSocket."""
    refusal: GanglionError | None = None


def presented_key(named: dict[bytes, bytes]) -> bytes | None:
    """The key that a client shows, under either name."""
    authorization = named.get(b"authorization")
    if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return named.get(b"x-api-key")
