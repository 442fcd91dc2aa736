"""The `[server]` and `[join]` sections of the configuration, and what the server itself fixes beside them.

A field that its class docstring describes is a key of the section. Any other is the program's own: no file
sets it.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from ganglion.core.errors import InvalidValue
from ganglion.core.request import LEAST_URGENT, MOST_URGENT

_MEBIBYTE: Final = 2**20
_LISTED_HOST: Final = re.compile(
    r"(?:\*|(?:\*\.)?[a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII
)


class AnswerDeadlines(Struct, frozen=True):
    """How long a request may wait, in seconds, before it fails with 504.

    queue_s: Until the engine starts the request: loading, rendering, tokenizing, waiting for a free slot.
    first_token_s: From there to the first token.
    idle_s: Between two events after the first token.
    total_s: For the whole request.
    """

    queue_s: Annotated[float, Meta(gt=0)] = 600.0
    first_token_s: Annotated[float, Meta(gt=0)] = 600.0
    idle_s: Annotated[float, Meta(gt=0)] = 120.0
    total_s: Annotated[float, Meta(gt=0)] = 3600.0


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """The running version, for `/version` and the fingerprint of answers."""

    version: str = "0"
    git_sha: str | None = None
    libraries: tuple[tuple[str, str], ...] = ()


class ImageFetchSettings(Struct, frozen=True):
    """Where a node may fetch images from that a request names by an address.

    fetch_hosts: Hosts to fetch images from: `images.example.com`, `*.example.com`, or `*` for every public
        one; with a port where that is not the usual one. Left out, none are fetched.
    fetch_http: Fetch over http, too, and not over https alone.
    """

    fetch_hosts: tuple[str, ...] = ()
    may_fetch_http: bool = field(default=False, name="fetch_http")

    def check(self) -> None:
        """Raise InvalidValue for a host that could never match."""
        for host in self.fetch_hosts:
            if not _LISTED_HOST.fullmatch(host):
                raise InvalidValue(
                    f"'server.images.fetch_hosts' names {host[:200]!r}, which is no host.",
                    param="server.images.fetch_hosts",
                    hint="Write a name as images.example.com, *.example.com or *, and a port after a colon.",
                )


class ServerSettings(Struct, frozen=True):
    """How a node or a gateway listens, whom it admits, and how much it takes.

    host: Address to listen on; one that other machines can reach needs a key.
    port: Port of HTTP; 0 takes a free one.
    grpc: Serve token sessions over gRPC.
    grpc_port: Port of gRPC; 0 takes a free one. Left out, the port after HTTP's, or a free one where HTTP
        takes a free one.
    reuse_port: Share the ports with other processes that set this too (SO_REUSEPORT): the kernel spreads
        connections over them.
    api_keys: Keys of which a caller must send one. They allow requests to models only.
    admin_keys: Keys that may also change the server: load, unload and pull models, and on a gateway change
        its fleet.
    gateway_keys: Keys of gateways: a caller with one is trusted to name the tenant of a request and its
        priority.
    most_urgent: The lowest `priority` that a request with one of `api_keys` may have; lower is more urgent.
    cors_origins: Origins of web pages that may call, or `*`.
    allowed_hosts: Names besides the loopback ones that the Host header may hold on a loopback bind, as
        behind a proxy.
    strict: Refuse unknown request fields, instead of noting them in the debug log.
    max_body_bytes: Largest request body.
    max_connections: Clients that may be connected at once, in each process; the next one gets 503. Each
        takes a file descriptor: `ulimit -n` must allow for more.
    drain_timeout_s: Seconds that running answers get at shutdown.
    tls_cert: Certificate chain, PEM; serves https. Needs `tls_key` as well.
    tls_key: Private key of the certificate, PEM.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    has_grpc: bool = field(default=True, name="grpc")
    grpc_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    has_reuse_port: bool = field(default=False, name="reuse_port")
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    gateway_keys: tuple[str, ...] = ()
    most_urgent: Annotated[int, Meta(ge=MOST_URGENT, le=LEAST_URGENT)] = 0
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    is_strict: bool = field(default=False, name="strict")
    # JSON is read on the event loop: what a larger body costs, everybody waits for.
    max_body_bytes: Annotated[int, Meta(ge=1)] = 8 * _MEBIBYTE
    max_connections: Annotated[int, Meta(ge=1)] = 8192
    drain_timeout_s: Annotated[float, Meta(ge=0)] = 30.0
    tls_cert: str | None = None
    tls_key: str | None = None
    deadlines: AnswerDeadlines = AnswerDeadlines()
    images: ImageFetchSettings = ImageFetchSettings()

    max_in_flight: int = 4096
    """Requests inside the server at once; the engines' own queues are smaller and refuse first."""
    body_s: float = 60.0
    """How long a client may take to send its body."""
    first_byte_s: float = 1.0
    """How long a failure may still become an HTTP status before the stream opens."""
    keep_alive_s: float = 10.0
    """How long a stream may be silent before it sends a sign of life."""
    stalled_reader_s: float = 30.0
    """How long one write may wait for a client that does not read."""
    idle_connection_s: int = 15
    build: BuildInfo = BuildInfo()

    @property
    def has_keys(self) -> bool:
        """Whether callers need a key."""
        return bool(self.api_keys or self.admin_keys or self.gateway_keys)

    @property
    def scheme(self) -> str:
        """The scheme of the URLs under which it is reached."""
        return "https" if self.tls_cert else "http"

    def check(self) -> None:
        """Raise InvalidValue where two keys contradict each other."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidValue(
                "A TLS certificate and its key are given together.",
                hint="Set both --tls-cert and --tls-key.",
            )
        self.images.check()
        if self.grpc_port is not None and not self.has_grpc:
            raise InvalidValue(
                "A port for gRPC is given, but gRPC is switched off.", hint="Leave one of the two out."
            )


class JoinSettings(Struct, frozen=True):
    """The gateways that a node joins by itself.

    urls: URLs of gateways to join, as in `http://gateway.lan:8000`.
    key: The key that the node shows them, which must allow it to join.
    name: The node's name in the fleet; left out, the host's name and the port.
    advertise: The URL under which gateways reach the node; left out, the one it listens on. A node that
        listens on every address needs it.
    """

    urls: tuple[str, ...] = ()
    key: str | None = None
    name: str | None = None
    advertise: str | None = None


NO_GATEWAYS: Final = JoinSettings()
"""A node that joins no gateway."""
