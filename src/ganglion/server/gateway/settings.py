"""What an operator decides about a gateway."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ganglion.gateway.node import NodeSpec
from ganglion.gateway.placing.catalogue import FleetCatalogue
from ganglion.server.life.storage import StoreSettings
from ganglion.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Everything that a gateway needs; the command line fills it."""

    server: ServerSettings
    nodes: tuple[NodeSpec, ...] = ()
    catalogue: FleetCatalogue = field(default_factory=FleetCatalogue)
    storage: StoreSettings | None = None
    """Where responses, conversations, keys and usage are kept; None for nowhere."""
    node_key: str | None = None
    lease_s: float = 5.0
    poll_s: float = 2.0
    connect_s: float = 3.0
    first_byte_s: float = 900.0
    idle_s: float = 300.0
    queue_requests: int = 1024
    """Requests that may wait until a node below its `max_in_flight` takes them."""
    queue_s: float = 30.0
    """How long each of these waits at most."""
    open_answer_tokens: int = 4096
    """What an answer may be that its client did not bound, where its key has a cap on tokens or cost."""
    request_log: Callable[[str], object] | None = None
    """Takes lines of the request log, many at a time; None for none."""
    is_json_log: bool = False
    has_tracing: bool = False
    """Whether each request is a span of OpenTelemetry, where its package is installed."""

    @property
    def has_static_keys(self) -> bool:
        """Whether the operator configured any."""
        return bool(self.server.api_keys or self.server.admin_keys)

    def renewed(self, fresh: "GatewaySettings") -> "GatewaySettings":
        """With what may change while it runs as others have it: nodes, catalogue and the operator's keys."""
        keys = fresh.server
        server = replace(self.server, api_keys=keys.api_keys, admin_keys=keys.admin_keys)
        return replace(self, server=server, nodes=fresh.nodes, catalogue=fresh.catalogue)


Reload = Callable[[], GatewaySettings]
"""Reads the configuration again; raises what is wrong with it."""
