"""The routes of the gateway: who may call each, the format of its errors, and whether a node answers it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

from msgspec import Struct

from ganglion.core.errors import InvalidRequest
from ganglion.wire import openai_errors
from ganglion.wire.dialect import Dialect, Wire, WireRoute
from ganglion.wire.dialects import DIALECTS, PUBLIC_PATHS, dialect_of_path, error_format_of
from ganglion.wire.error_format import ErrorFormat
from ganglion.wire.proxy_dialect import PLAIN, ProxyDialect
from ganglion.wire.route_aliases import canonical_path

_Access = Literal["public", "key", "node", "admin"]

_SHORT_BYTES = 128
_SAFE_IN_PATH = "/:@!$&'()*+,;=~-._"


@dataclass(frozen=True, slots=True)
class ProxyRoute:
    """One call of the gateway."""

    label: str
    """Its name in metrics and the log: bounded, unlike paths."""
    errors: ErrorFormat = openai_errors.ERRORS
    dialect: ProxyDialect = PLAIN
    """What its bodies and streams look like."""
    access: _Access = "key"
    wire: Wire | None = None
    """The wire that a node must speak; None where no model answers."""
    is_control_app: bool = True
    """Only the control app answers it, whatever the nodes can do."""
    generates: bool = False
    """Whether an answer is as long as the client lets it be."""
    answer_tokens: int | None = None
    """What an answer is at most, where its client has no say in that."""
    may_outlast: bool = False
    """Whether an answer may run on after its request, and is then counted at the control app."""
    runs_model: bool = True
    """Whether tokens are spent."""


class RequestTarget(Struct, frozen=True, gc=False):
    """What a request line asks for."""

    path: bytes
    """Decoded, as the table has it."""
    query: bytes
    """As it came, without its question mark."""
    encoded: bytes
    """The path as it goes upstream: read there in the one way in which it was judged here."""


def parse_target(url: bytes) -> RequestTarget:
    """The path and query of a request line; raises InvalidRequest."""
    return _parsed(url) if len(url) <= _SHORT_BYTES else _parse(url)


def _parse(url: bytes) -> RequestTarget:
    if not url.startswith(b"/"):
        scheme, _, rest = url.partition(b"://")
        if scheme.lower() not in (b"http", b"https"):
            raise InvalidRequest("The request line names no path.")
        url = b"/" + rest.partition(b"/")[2]
    if b"#" in url:
        raise InvalidRequest("The request line holds a fragment.")
    path, _, query = url.partition(b"?")
    is_quoted = b"%" in path
    path = _canonical(unquote_to_bytes(path) if is_quoted else path)
    return RequestTarget(path, query, quote_from_bytes(path, _SAFE_IN_PATH).encode() if is_quoted else path)


def _canonical(path: bytes) -> bytes:
    """The route that a path means: an upstream may know one name of it only."""
    return canonical_path(path.decode()).encode() if path.isascii() else path


_parsed = lru_cache(maxsize=512)(_parse)
"""Nearly every request line is one of a few."""


def _of_wire(dialect: Dialect, route: WireRoute) -> ProxyRoute:
    errors = error_format_of(route.path)
    if route.access == "admin":
        return ProxyRoute("admin", errors, dialect.proxy, access="admin")
    return ProxyRoute(
        dialect.name,
        errors,
        dialect.proxy,
        wire=dialect.name,
        is_control_app=route.is_stored,
        generates=route.generates,
        answer_tokens=dialect.proxy.answer_tokens.get(route.path),
        may_outlast=route.may_outlast,
        runs_model=route.runs_model,
    )


_PUBLIC = ProxyRoute("page", access="public")
_ADMIN = ProxyRoute("admin", access="admin")
_NODE = ProxyRoute("admin", access="node")

_TABLE: dict[tuple[bytes, bytes], ProxyRoute] = {
    **{
        (route.method.encode(), route.path.encode()): _of_wire(dialect, route)
        for dialect in DIALECTS
        for route in dialect.routes
    },
    (b"POST", b"/fleet/join"): _NODE,
    (b"POST", b"/fleet/leave"): _NODE,
    **{(method, path.encode()): _PUBLIC for method in (b"GET", b"HEAD") for path in PUBLIC_PATHS},
}

_ADMIN_ROOTS = (b"/fleet", b"/models", b"/metrics", b"/discovery")
_OTHER = ProxyRoute("other")
_OTHER_OF: dict[str, ProxyRoute] = {
    each.name: ProxyRoute(each.name if each.keeps_answers else "other", each.errors, each.proxy)
    for each in DIALECTS
    if each.prefix is not None
}


def route_of(method: bytes, path: bytes, named: Mapping[bytes, bytes] = MappingProxyType({})) -> ProxyRoute:
    """What a call is; whatever the table does not know is the control app's to answer or refuse."""
    found = _TABLE.get((method, path))
    if found is not None:
        return found
    # By prefix and not by segment: `/fleetwide` is nobody's, and refused either way.
    if path.startswith(_ADMIN_ROOTS):
        return _ADMIN
    dialect = dialect_of_path(path.decode("latin-1"), lambda name: name.encode() in named)
    return _OTHER if dialect is None else _OTHER_OF[dialect.name]
