"""Where a node's gRPC door is, by the address of its HTTP door."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ganglion.core.errors import InvalidValue

DEFAULT_URL: Final = "http://127.0.0.1:8080"
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port as gRPC takes them, and whether TLS is spoken there."""

    target: str
    is_tls: bool


def address_of(base_url: str, grpc_address: str | None = None) -> Address:
    """The port after the HTTP one, unless `grpc_address` (host:port) says where; raises InvalidValue."""
    url = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
    if url.scheme not in DEFAULT_PORTS or not url.hostname or url.username is not None:
        raise _unexpected(base_url, "base_url", f"the address of a node such as {DEFAULT_URL}")
    is_tls = url.scheme == "https"
    if grpc_address:
        return Address(_target(grpc_address), is_tls)
    try:
        port = (url.port or DEFAULT_PORTS[url.scheme]) + 1
    except ValueError:
        port = 0
    if not 1 <= port <= 65_535:
        raise _unexpected(base_url, "base_url", "a port below 65535")
    return Address(_joined(url.hostname, port), is_tls)


def _target(grpc_address: str) -> str:
    parts = urlsplit(f"//{grpc_address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.path or parts.username is not None:
        raise _unexpected(grpc_address, "grpc_address", "host:port")
    return _joined(host, port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unexpected(found: str, param: str, expected: str) -> InvalidValue:
    return InvalidValue(f"Expected {expected}, found {found[:200]!r}.", param=param)
