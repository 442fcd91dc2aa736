"""The headers that the gateway writes to nodes: its key, the lease, and whose request it is.

Law: nobody but this module writes them, for HTTP as for gRPC. A client's key is never among them, and a
foreign server hears nothing of tenants.
"""

from collections.abc import Iterable

from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream.upstream_connection import Headers
from ganglion.wire.headers import AFFINITY, EPOCH, KEY, PRIORITY, REQUEST_ID, TENANT

JSON_BODY = (b"content-type", b"application/json")


def key_headers(spec: NodeSpec) -> Headers:
    """The node's own key, where it has one."""
    return [] if spec.api_key is None else [(b"authorization", b"Bearer " + _header_value(spec.api_key))]


def lease_headers(spec: NodeSpec) -> Headers:
    """The lease under which work is sent to a node that joined."""
    return [] if spec.epoch is None else [(EPOCH, b"%d" % spec.epoch)]


def identity_headers(
    *,
    tenant: str | None = None,
    key_id: str | None = None,
    priority: int | None = None,
    request_id: str = "",
    affinity: str = "",
) -> Headers:
    """Whose request it is, for one of our nodes; what is left out is not sent."""
    headers: Headers = []
    if tenant is not None:
        headers.append((TENANT, _header_value(tenant)))
    if key_id is not None:
        headers.append((KEY, _header_value(key_id)))
    if priority is not None:
        headers.append((PRIORITY, b"%d" % priority))
    if request_id:
        headers.append((REQUEST_ID, _header_value(request_id)))
    if affinity:
        headers.append((AFFINITY, _header_value(affinity)))
    return headers


def json_headers(
    spec: NodeSpec, *, tenant: str, request_id: str = "", priority: int = 0, affinity: str = ""
) -> Headers:
    """The headers of an awaited call with a JSON body, apart from the key."""
    if not spec.is_ours:
        return [JSON_BODY]
    identity = identity_headers(tenant=tenant, priority=priority, request_id=request_id, affinity=affinity)
    return [JSON_BODY, *identity, *lease_headers(spec)]


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as they stand in the head of a request."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def _header_value(text: str) -> bytes:
    """Text as the value of a header, whatever it holds."""
    if text.isascii() and text.isprintable():
        return text.encode()
    return text.encode("ascii", "backslashreplace").replace(b"\r", b"\\r").replace(b"\n", b"\\n")
