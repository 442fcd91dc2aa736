"""One request as its client sent it.

Reason for a struct, here and in all that is made for each request: a frozen dataclass takes far longer.
"""

import re

from msgspec import Struct

from ganglion.core.errors import GanglionError
from ganglion.gateway.proxy.routes import ProxyRoute, RequestTarget, route_of
from ganglion.gateway.upstream.upstream_connection import Headers

_BEARER = b"bearer "
NOWHERE = RequestTarget(b"/", b"", b"/")


class RequestHead(Struct):
    """What stands before a request's body, and what follows from it alone."""

    method: bytes
    target: RequestTarget
    route: ProxyRoute
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
    """Its lines as our nodes get them, once they were needed."""
    to_foreign: bytes | None = None
    """And as foreign servers get them."""


class ClientRequest(Struct):
    """A whole request, or the reason why there is none."""

    head: RequestHead
    body: bytes = b""
    refusal: GanglionError | None = None


def build_head(
    method: bytes,
    target: RequestTarget,
    headers: Headers,
    *,
    is_kept: bool = False,
    is_old: bool = False,
    is_socket: bool = False,
) -> RequestHead:
    """A head of these words."""
    named = dict(headers)
    route = route_of(method, target.path, named)
    return RequestHead(
        method, target, route, headers, named, presented_key(named), is_kept, is_old, is_socket
    )


def presented_key(named: dict[bytes, bytes]) -> bytes | None:
    """The key that a client shows, under either name."""
    authorization = named.get(b"authorization")
    if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return named.get(b"x-api-key")


# Law: only a head that the parser has read is recognised, and only with everything but its length
# unchanged, so that whatever the parser refuses is refused here too.

_MAX_CACHED_HEAD_BYTES = 4096
"""Of a head that is worth remembering: each connection holds one."""
_MAX_DIGITS = 7
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,7})\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"
_NEVER_CACHED = (b"transfer-encoding", b"expect", b"upgrade")


class HeadCache(Struct, frozen=True):
    """A head as bytes, around the digits of its length."""

    before: bytes
    after: bytes
    head: RequestHead

    def body_in(self, data: bytes, max_bytes: int) -> bytes | None:
        """The body of a request that is this head and nothing behind its body; None for any other."""
        if not data.startswith(self.before):
            return None
        start = len(self.before)
        end = data.find(b"\r", start, start + _MAX_DIGITS + 1)
        if not data.startswith(self.after, end) or not (digits := data[start:end]).isdigit():
            return None
        length, start = int(digits), end + len(self.after)
        return data[start:] if length == len(data) - start and length <= max_bytes else None


def cache_head(data: bytes, head: RequestHead) -> HeadCache | None:
    """What to know of a request that the parser took from exactly these bytes; None where it may differ."""
    end = data.find(_END) + len(_END)
    if not len(_END) <= end <= _MAX_CACHED_HEAD_BYTES or not head.is_kept:
        return None
    # Neither folded lines, nor such as end otherwise, nor blank ones before the first.
    if data.count(b"\n", 0, end) != len(head.headers) + 2 or not data.startswith(head.method):
        return None
    length = _LENGTH.search(data, 0, end)
    if length is None or any(name in head.named for name in _NEVER_CACHED):
        return None
    if len(head.named) != len(head.headers) or int(length[1]) != len(data) - end:
        return None
    return HeadCache(data[: length.start(1)], data[length.end(1) : end], head)
