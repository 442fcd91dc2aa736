"""The `[server]` and `[join]` sections of the configuration, and what the server itself fixes beside them.

A field with a description is a key of the section. One without is the program's own: no file sets it.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from ganglion.core.errors import InvalidValue
from ganglion.core.request import LEAST_URGENT, MOST_URGENT

MEBIBYTE: Final = 2**20


class AnswerDeadlines(Struct, frozen=True):
    """How long a request may wait, in seconds, before it fails with 504."""

    queue_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Until the engine starts the request: loading, rendering, tokenizing, waiting for "
            "a free slot.",
        ),
    ] = 600.0
    first_token_s: Annotated[float, Meta(gt=0, description="From there to the first token.")] = 600.0
    idle_s: Annotated[float, Meta(gt=0, description="Between two events after the first token.")] = 120.0
    total_s: Annotated[float, Meta(gt=0, description="For the whole request.")] = 3600.0


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """The running version, for `/version` and the fingerprint of answers."""

    version: str = "0"
    git_sha: str | None = None
    libraries: tuple[tuple[str, str], ...] = ()


class ServerSettings(Struct, frozen=True):
    """How a node or a gateway listens, whom it admits, and how much it takes."""

    host: Annotated[
        str, Meta(description="Address to listen on; one that other machines can reach needs a key.")
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port of HTTP; 0 takes a free one.")] = 8080
    has_grpc: Annotated[bool, Meta(description="Serve token sessions over gRPC.")] = field(
        default=True, name="grpc"
    )
    grpc_port: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=65535,
                description="Port of gRPC; 0 takes a free one. Left out, the port after HTTP's, or a free "
                "one where HTTP takes a free one.",
            ),
        ]
        | None
    ) = None
    has_reuse_port: Annotated[
        bool,
        Meta(
            description="Share the ports with other processes that set this too (SO_REUSEPORT): the kernel "
            "spreads connections over them."
        ),
    ] = field(default=False, name="reuse_port")
    api_keys: Annotated[
        tuple[str, ...],
        Meta(description="Keys of which a caller must send one. They allow requests to models only."),
    ] = ()
    admin_keys: Annotated[
        tuple[str, ...],
        Meta(
            description="Keys that may also change the server: load, unload and pull models, and on a "
            "gateway change its fleet."
        ),
    ] = ()
    gateway_keys: Annotated[
        tuple[str, ...],
        Meta(
            description="Keys of gateways: a caller with one is trusted to name the tenant of a request and "
            "its priority."
        ),
    ] = ()
    most_urgent: Annotated[
        int,
        Meta(
            ge=MOST_URGENT,
            le=LEAST_URGENT,
            description="The lowest `priority` that a request with one of `api_keys` may have; lower is more "
            "urgent.",
        ),
    ] = 0
    cors_origins: Annotated[
        tuple[str, ...], Meta(description="Origins of web pages that may call, or `*`.")
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Names besides the loopback ones that the Host header may hold on a loopback bind, "
            "as behind a proxy."
        ),
    ] = ()
    is_strict: Annotated[
        bool, Meta(description="Refuse unknown request fields, instead of noting them in the debug log.")
    ] = field(default=False, name="strict")
    # JSON is read on the event loop: what a larger body costs, everybody waits for.
    max_body_bytes: Annotated[int, Meta(ge=1, description="Largest request body.")] = 8 * MEBIBYTE
    max_connections: Annotated[
        int,
        Meta(
            ge=1,
            description="Clients that may be connected at once, in each process; the next one gets 503. Each "
            "takes a file descriptor: `ulimit -n` must allow for more.",
        ),
    ] = 8192
    drain_timeout_s: Annotated[
        float, Meta(ge=0, description="Seconds that running answers get at shutdown.")
    ] = 30.0
    tls_cert: (
        Annotated[str, Meta(description="Certificate chain, PEM; serves https. Needs `tls_key` as well.")]
        | None
    ) = None
    tls_key: Annotated[str, Meta(description="Private key of the certificate, PEM.")] | None = None
    deadlines: AnswerDeadlines = AnswerDeadlines()

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
        if self.grpc_port is not None and not self.has_grpc:
            raise InvalidValue(
                "A port for gRPC is given, but gRPC is switched off.", hint="Leave one of the two out."
            )


class JoinSettings(Struct, frozen=True):
    """The gateways that a node joins by itself."""

    urls: Annotated[
        tuple[str, ...], Meta(description="URLs of gateways to join, as in `http://gateway.lan:8000`.")
    ] = ()
    key: (
        Annotated[str, Meta(description="The key that the node shows them, which must allow it to join.")]
        | None
    ) = None
    name: (
        Annotated[
            str,
            Meta(description="The node's name in the fleet; left out, the host's name and the port."),
        ]
        | None
    ) = None
    advertise: (
        Annotated[
            str,
            Meta(
                description="The URL under which gateways reach the node; left out, the one it listens on. A "
                "node that listens on every address needs it."
            ),
        ]
        | None
    ) = None


NO_GATEWAYS: Final = JoinSettings()
"""A node that joins no gateway."""
