"""One request as its client sent it.

Reason for a struct, here and in all that is made for each request: a frozen dataclass takes far longer.
"""

from msgspec import Struct

from ganglion.core.errors import GanglionError
from ganglion.gateway.routes import Route, Target, route_of
from ganglion.gateway.upstream import Headers

_BEARER = b"bearer "
NOWHERE = Target(b"/", b"", b"/")


class Head(Struct):
    """What stands before a request's body, and what follows from it alone."""

    method: bytes
    target: Target
    route: Route
    headers: Headers
    """Names in lower case."""
    named: dict[bytes, bytes]
    """The same by name, the last of each."""
    key: bytes | None
    """What the client shows."""
    is_kept: bool = False
    """Whether another request may follow on the connection."""
    is_old: bool = False
    """HTTP/1.0: no chunks, and closed unless it says otherwise."""
    is_socket: bool = False
    """It asks for a WebSocket."""
    is_from_here: bool = False
    """Its Host and Origin were judged, and are good."""
    to_ours: bytes | None = None
    """Its lines as our nodes get them, once somebody asked."""
    to_foreign: bytes | None = None
    """And as strangers get them."""


class Call(Struct):
    """A whole request, or the reason why there is none."""

    head: Head
    body: bytes = b""
    refusal: GanglionError | None = None


def head_of(
    method: bytes,
    target: Target,
    headers: Headers,
    *,
    is_kept: bool = False,
    is_old: bool = False,
    is_socket: bool = False,
) -> Head:
    """A head of these words."""
    named = dict(headers)
    route = route_of(method, target.path, is_anthropic=b"anthropic-version" in named)
    return Head(method, target, route, headers, named, presented_key(named), is_kept, is_old, is_socket)


def presented_key(named: dict[bytes, bytes]) -> bytes | None:
    """The key that a client shows, under either name."""
    authorization = named.get(b"authorization")
    if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return named.get(b"x-api-key")
