"""Where a node listens, read out of its URL."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from ganglion.core.errors import InvalidValue

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port, or the path of a Unix socket, and what stands before each path there."""

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


def parse_address(url: str) -> Address:
    """`http://host[:port][/prefix]`, `https://…` or `unix:///path`; raises InvalidValue."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidValue(f"{url!r} is not a URL.", hint="Give http://HOST:PORT.") from None
    if parts.scheme == "unix" and parts.path:
        return Address("localhost", 80, unix=parts.path)
    if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise InvalidValue(f"{url!r} is not the URL of a server.", hint="Give http://HOST:PORT.")
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https", prefix)
