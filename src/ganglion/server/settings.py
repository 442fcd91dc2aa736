"""What an operator decides about the doors."""

from dataclasses import dataclass

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class AnswerDeadlines:
    """How long each stage of an answer may take."""

    queue_s: float = 600.0
    """Until the engine starts the request."""
    first_token_s: float = 600.0
    """From there to the first token."""
    idle_s: float = 120.0
    """Between events after it."""
    total_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """What is running, for `/version` and the fingerprint of answers."""

    version: str = "0"
    git_sha: str | None = None
    libraries: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything the doors need; the command line fills it."""

    host: str = "127.0.0.1"
    port: int = 8080
    has_grpc: bool = True
    grpc_port: int | None = None
    """None is HTTP's and one more; where HTTP takes a free port, so does gRPC."""
    has_reuse_port: bool = False
    """Whether other processes that ask for it, too, may listen on the same ports (SO_REUSEPORT)."""
    api_keys: tuple[str, ...] = ()
    """Of users, who ask models and change nothing else."""
    admin_keys: tuple[str, ...] = ()
    """Of those who also load and unload models."""
    gateway_keys: tuple[str, ...] = ()
    """Of gateways, which are believed in what they say of a request."""
    most_urgent: int = 0
    """The lowest priority that requests with a user's key may have; lower is more urgent."""
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    """Names besides the loopback ones that a Host header may hold on a loopback bind, as behind a proxy."""
    is_strict: bool = False
    """Refuse fields that nobody knows instead of noting them."""
    max_body_bytes: int = 8 * MEBIBYTE
    """JSON is read on the event loop: what a larger body costs, everybody waits for."""
    max_connections: int = 8192
    max_in_flight: int = 4096
    """Requests inside the door at once; the engines' own queues are smaller and refuse first."""
    deadlines: AnswerDeadlines = AnswerDeadlines()
    body_s: float = 60.0
    """How long a client may take to send its body."""
    first_byte_s: float = 1.0
    """How long a failure may still become an HTTP status before the stream opens."""
    keep_alive_s: float = 10.0
    """How much silence a stream may hold before it says something."""
    stalled_reader_s: float = 30.0
    """How long one write may wait for a client that does not read."""
    idle_connection_s: int = 15
    drain_timeout_s: float = 30.0
    tls_cert: str | None = None
    tls_key: str | None = None
    build: BuildInfo = BuildInfo()

    @property
    def scheme(self) -> str:
        """Of the URLs under which it is reached."""
        return "https" if self.tls_cert else "http"

    @property
    def has_keys(self) -> bool:
        """Whether callers need one."""
        return bool(self.api_keys or self.admin_keys or self.gateway_keys)
