"""The address of a node, parsed from its URL."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ganglion.core.errors import InvalidValue

_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"[!-~]{1,2048}")
"""A URL ends up in heads of requests: a space or a line end there would begin something else."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A host and port, or the path of a Unix socket, and the prefix of each path there."""

    host: str
    port: int
    is_tls: bool = False
    prefix: str = ""
    unix: str | None = None

    @property
    def authority(self) -> str:
        """As the Host header names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.is_tls else "http"] else f"{host}:{self.port}"


def parse_node_url(url: str) -> NodeAddress:
    """`http://host[:port][/prefix]`, `https://…` or `unix:///path`; raises InvalidValue."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refusal(url) from None
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return NodeAddress("localhost", 80, unix=parts.path)
    if not _URL.fullmatch(url) or parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise _refusal(url)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise _refusal(url)
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return NodeAddress(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https", prefix)


def _refusal(url: str) -> InvalidValue:
    return InvalidValue(f"{url[:200]!r} is not the URL of a server.", hint="Give http://HOST:PORT.")
