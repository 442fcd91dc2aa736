"""The settings of a client, from its arguments and the environment."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ganglion.client.transport import CallOptions
from ganglion.core.errors import InvalidValue

DEFAULT_URL: Final = "http://127.0.0.1:8080"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class GrpcTarget:
    """A host and port as gRPC takes them, and whether TLS is spoken there."""

    target: str
    is_tls: bool


def grpc_target(base_url: str, grpc_address: str | None = None) -> GrpcTarget:
    """The port after the HTTP one, unless `grpc_address` (host:port) is given; raises InvalidValue."""
    url = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
    if url.scheme not in _DEFAULT_PORTS or not url.hostname or url.username is not None:
        raise _unexpected(base_url, "base_url", f"the address of a node such as {DEFAULT_URL}")
    is_tls = url.scheme == "https"
    if grpc_address:
        return GrpcTarget(_target(grpc_address), is_tls)
    try:
        port = (url.port or _DEFAULT_PORTS[url.scheme]) + 1
    except ValueError:
        port = 0
    if not 1 <= port <= 65_535:
        raise _unexpected(base_url, "base_url", "a port below 65535")
    return GrpcTarget(_joined(url.hostname, port), is_tls)


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


TIMEOUT_S: Final = 60.0
IDLE_TIMEOUT_S: Final = 300.0
"""A node that reads a long prompt sends progress; one that is silent for longer is gone."""


@dataclass(frozen=True, slots=True)
class _ClientSettings:
    """The node's address, the options of every call, and the certificates to trust."""

    address: GrpcTarget
    call_options: CallOptions
    ca_file: str | Path | None = None


def client_settings(
    *,
    base_url: str | None,
    api_key: str | None,
    grpc_address: str | None,
    timeout_s: float,
    idle_timeout_s: float,
    ca_file: str | Path | None,
) -> _ClientSettings:
    """Fill missing arguments from GANGLION_URL, GANGLION_GRPC_ADDRESS and GANGLION_API_KEY."""
    url = base_url or os.environ.get("GANGLION_URL") or DEFAULT_URL
    # An address of the environment belongs to the URL of the environment, not to one that was given.
    grpc_address = grpc_address or (None if base_url else os.environ.get("GANGLION_GRPC_ADDRESS"))
    key = api_key or os.environ.get("GANGLION_API_KEY") or None
    return _ClientSettings(
        grpc_target(url, grpc_address), CallOptions(timeout_s, idle_timeout_s, key), ca_file
    )
