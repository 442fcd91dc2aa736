"""Which addresses images may be fetched from. Pure.

Laws: a host is a name that the operator listed, spelled plainly: whatever else resolvers take for a host (a
number, an address, other letters, a user before it) is refused before anybody is asked what it means. An
address is good only where all of the internet would reach the same machine by it.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ganglion.core.errors import InvalidValue

_PORTS: Final = {"http": 80, "https": 443}
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# The last label of a name begins with a letter: what a resolver reads as a number, as `0x7f`, does not.
_HOST: Final = re.compile(rf"(?:{_LABEL}\.)*[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?")
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?(?P<target>[/?][!-~]*)?",
    re.IGNORECASE | re.ASCII,
)
_UNSAFE: Final = frozenset('\\<>"^`{|}')
"""Characters that no address holds unescaped, and that parsers disagree about."""
ANY_HOST: Final = "*"

_FORBIDDEN_V4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",
        ),
    )
)
_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
"""All that is given out; mapped, translated, local and multicast addresses lie outside."""
_FORBIDDEN_V6: Final = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
"""Of these, what carries another address in it (Teredo, 6to4) and what is for documents."""


@dataclass(frozen=True, slots=True)
class ImageLocation:
    """An address that the operator allows, taken apart."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """As the Host header names it."""
        return self.host if self.port == _PORTS[self.scheme] else f"{self.host}:{self.port}"

    @property
    def is_tls(self) -> bool:
        """Whether its bytes are read over TLS."""
        return self.scheme == "https"


@dataclass(frozen=True, slots=True)
class FetchRules:
    """The operator's word: hosts as `name`, `*.name` or `*`, with `:port` for any but the usual one."""

    hosts: Sequence[str] = ()
    may_use_http: bool = False

    @property
    def is_off(self) -> bool:
        """Whether nothing is fetched."""
        return not self.hosts

    def location_of(self, url: str) -> ImageLocation:
        """The address taken apart; raises InvalidValue where it may not be fetched from."""
        found = _URL.fullmatch(url)
        if found is None or _UNSAFE & set(url):
            raise InvalidValue("It is not a plain address such as https://host/image.png.")
        scheme, host = found["scheme"].lower(), found["host"].lower()
        port = int(found["port"] or _PORTS[scheme])
        if not _HOST.fullmatch(host) or not 0 < port < 2**16:
            raise InvalidValue("Its host is not a plain name.")
        if scheme == "http" and not self.may_use_http:
            raise InvalidValue("It is not https.")
        if not self._allows(host, port, scheme):
            raise InvalidValue("Its host is not one that this server fetches images from.")
        target = found["target"] or "/"
        target = target if target.startswith("/") else f"/{target}"
        return ImageLocation("https" if scheme == "https" else "http", host, port, target.partition("#")[0])

    def _allows(self, host: str, port: int, scheme: str) -> bool:
        for listed in self.hosts:
            name, colon, listed_port = listed.lower().partition(":")
            is_port = port == (int(listed_port) if colon and listed_port.isdigit() else _PORTS[scheme])
            is_host = name in (ANY_HOST, host) or (name.startswith("*.") and host.endswith(name[1:]))
            if is_port and is_host:
                return True
        return False


def is_public(address: str) -> bool:
    """Whether a resolved address belongs to the internet at large."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in _FORBIDDEN_V4)
    is_whole = found.scope_id is None and found in _GLOBAL_V6
    return is_whole and not any(found in network for network in _FORBIDDEN_V6)
