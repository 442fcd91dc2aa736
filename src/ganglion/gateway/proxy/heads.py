"""The heads of requests and responses: what is passed on, what is ours to say, and what is dropped.

Law: a client's identity, its hop-by-hop headers and everything named x-ganglion-* end here; so do an
upstream's cookies, and whatever tells where it is. An upstream's encoding is never asked for: whatever is
compressed cannot be counted.
"""

from collections.abc import Callable, Iterable
from http import HTTPStatus

from ganglion.gateway.proxy.client_request import RequestHead
from ganglion.gateway.upstream.upstream_connection import Headers
from ganglion.wire.dialects import DIALECTS
from ganglion.wire.headers import INTERNAL_PREFIX

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"content-length",
    )
)
_DROPPED = _HOP_BY_HOP | frozenset(
    (
        b"host",
        b"authorization",
        b"x-api-key",
        b"cookie",
        b"origin",
        b"referer",
        b"expect",
        b"accept-encoding",
        b"x-request-id",
        b"request-id",
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
        b"x-real-ip",
    )
)
_TO_FOREIGN = frozenset(
    (
        b"accept",
        b"content-type",
        b"user-agent",
        b"traceparent",
        b"tracestate",
        b"idempotency-key",
        *(name.encode() for dialect in DIALECTS for name in dialect.passed_headers),
    )
)
"""All of a client's headers that a foreign server gets."""
_DROPPED_BACK = _HOP_BY_HOP | frozenset(
    (
        b"x-request-id",
        b"request-id",
        b"set-cookie",
        b"alt-svc",
        # Where an upstream is, seen from inside.
        b"location",
        b"content-location",
        b"refresh",
    )
)
_OURS_BACK = (INTERNAL_PREFIX, b"access-control-")
_MAX_NAMES = 1024
_TOKENS = (b"keep-alive", b"close", b"upgrade", b"")

SOCKET = b"connection: upgrade\r\nupgrade: websocket\r\n"
"""What asks for a WebSocket; the rest of its headers travel as any others do."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Overloaded" if status == 529 else "Unknown"


_LINES = {status: f"HTTP/1.1 {status} {_phrase(status)}\r\n".encode() for status in range(100, 600)}


def _named_by_connection(value: bytes | None) -> frozenset[bytes]:
    """The headers that a Connection header makes hop-by-hop."""
    if value is None:
        return frozenset()
    names = (name.strip().lower() for name in value.split(b","))
    return frozenset(name for name in names if name not in _TOKENS)


class _Names:
    """Which headers pass, judged once for each of the names that clients and nodes really use."""

    __slots__ = ("_is_passed", "_known")

    def __init__(self, is_passed: Callable[[bytes], bool]) -> None:
        self._is_passed = is_passed
        self._known: dict[bytes, bool] = {}

    def passed(self, headers: Iterable[tuple[bytes, bytes]], connection: bytes | None) -> list[bytes]:
        """Those that pass, as lines; `connection` may name more that do not."""
        known = self._known
        if connection is not None:
            named = _named_by_connection(connection)
            if named:
                headers = [header for header in headers if header[0] not in named]
        lines = []
        for header in headers:
            is_passed = known.get(header[0])
            if is_passed is None:
                is_passed = self._is_passed(header[0])
                if len(known) < _MAX_NAMES:
                    known[header[0]] = is_passed
            if is_passed:
                lines.append(b"%b: %b\r\n" % header)
        return lines


_ours = _Names(lambda name: name not in _DROPPED and not name.startswith(INTERNAL_PREFIX))
_foreign = _Names(_TO_FOREIGN.__contains__)
_back = _Names(lambda name: name not in _DROPPED_BACK and not name.startswith(_OURS_BACK))


def _connection_of(head: RequestHead) -> bytes | None:
    """What a client's Connection headers name, however many lines they are."""
    if len(head.named) == len(head.headers):
        return head.named.get(b"connection")
    lines = [value for name, value in head.headers if name == b"connection"]
    return b",".join(lines) if lines else None


def to_ours(head: RequestHead) -> bytes:
    """A client's headers as our nodes get them."""
    if head.to_ours is None:
        head.to_ours = b"".join(_ours.passed(head.headers, _connection_of(head)))
    return head.to_ours


def to_foreign(head: RequestHead) -> bytes:
    """A client's headers as foreign servers get them."""
    if head.to_foreign is None:
        head.to_foreign = b"".join(_foreign.passed(head.headers, _connection_of(head)))
    return head.to_foreign


def head_without_upgrade(head: RequestHead, url: bytes, version: str) -> bytes:
    """A request's own head, less its wish for another protocol."""
    lines = [b"%b %b HTTP/%b\r\n" % (head.method, url, version.encode())]
    lines += [
        b"%b: %b\r\n" % header for header in head.headers if header[0] not in (b"connection", b"upgrade")
    ]
    return b"".join((*lines, b"\r\n" if head.is_kept else b"connection: close\r\n\r\n"))


def response_head(status: int, headers: Iterable[tuple[bytes, bytes]], own: bytes) -> bytes:
    """A response's head: `own` are our lines, framing among them."""
    line = _LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
    named = b",".join([value for name, value in headers if name == b"connection"])
    return b"".join((line, *_back.passed(headers, named or None), own, b"\r\n"))


def switching_head(headers: Headers, own: bytes) -> bytes:
    """The answer that turns a connection into a WebSocket."""
    kept = [b"%b: %b\r\n" % header for header in headers if header[0].startswith(b"sec-websocket-")]
    return b"".join((_LINES[101], SOCKET, *kept, own, b"\r\n"))


def header_of(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header; `name` is lower case."""
    for key, value in headers:
        if key == name:
            return value
    return None


def is_sane_id(value: bytes) -> bool:
    """Whether a client's name for its request is one that we take over."""
    return len(value) <= 64 and value.translate(None, b"-_").isalnum()


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
