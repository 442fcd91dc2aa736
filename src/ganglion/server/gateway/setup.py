"""The values that a gateway is started with."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from msgspec import structs

from ganglion.gateway.node import NodeSpec
from ganglion.gateway.placing.catalogue import FleetCatalogue
from ganglion.gateway.settings import GatewaySettings
from ganglion.server.life.storage import StoreTarget
from ganglion.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class GatewaySetup:
    """Everything that a gateway needs; the command line builds it from the configuration."""

    server: ServerSettings
    gateway: GatewaySettings = GatewaySettings()
    nodes: tuple[NodeSpec, ...] = ()
    catalogue: FleetCatalogue = field(default_factory=FleetCatalogue)
    storage: StoreTarget | None = None
    """Where responses, conversations, keys and usage are kept; None for nowhere."""
    request_log: Callable[[str], object] | None = None
    """Takes lines of the request log, many at a time; None for none."""
    is_json_log: bool = False

    @property
    def has_static_keys(self) -> bool:
        """Whether the operator configured any."""
        return bool(self.server.api_keys or self.server.admin_keys)

    def renewed(self, fresh: "GatewaySetup") -> "GatewaySetup":
        """With what may change while it runs as others have it: nodes, catalogue and the operator's keys."""
        keys = fresh.server
        server = structs.replace(self.server, api_keys=keys.api_keys, admin_keys=keys.admin_keys)
        return replace(self, server=server, nodes=fresh.nodes, catalogue=fresh.catalogue)


Reload = Callable[[], GatewaySetup]
"""Reads the configuration again; raises what is wrong with it."""
