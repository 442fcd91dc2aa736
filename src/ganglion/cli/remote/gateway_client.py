"""Calls of commands to a running gateway."""

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Group, Parameter

from ganglion.cli.remote.http_client import HttpCaller, ServerKind
from ganglion.wire.fleet_overview import Drain, FleetActionDone, FleetOverview, Move

_GATEWAY: Final = Group("Gateway", sort_key=5)
DEFAULT_URL: Final = "http://127.0.0.1:8000"
GATEWAY_VARIABLE: Final = "GANGLION_GATEWAY"
_LOAD_S: Final = 7200.0
"""A model is downloaded and loaded elsewhere first, and where it was its requests may finish."""
_GATEWAY_KIND: Final = ServerKind(
    "gateway", DEFAULT_URL, flag="--gateway", variable=GATEWAY_VARIABLE, start="ganglion gateway"
)


@Parameter(name="*", group=_GATEWAY)
@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFlags:
    """The gateway to talk to."""

    gateway: Annotated[
        str,
        Parameter(
            help=f"Address of the gateway (default {DEFAULT_URL}).",
            env_var=GATEWAY_VARIABLE,
            show_default=False,
        ),
    ] = DEFAULT_URL
    api_key: Annotated[
        str | None,
        Parameter(
            help="A key of the gateway that may administer it.",
            env_var="GANGLION_API_KEY",
            show_default=False,
        ),
    ] = None

    def client(self) -> "GatewayApiClient":
        """A client for the gateway; raises InvalidValue where the address is none."""
        return GatewayApiClient(self.gateway, self.api_key)


GATEWAY_UNSET: Final = GatewayFlags()


class GatewayApiClient:
    """One gateway; every call is a connection of its own."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._caller = HttpCaller(_GATEWAY_KIND, url, api_key)

    def overview(self) -> FleetOverview:
        """`GET /fleet`."""
        return self._caller.ask("GET", "/fleet", FleetOverview)

    def drain(self, body: Drain) -> FleetActionDone:
        """`POST /fleet/drain`; returns when no more work goes there."""
        return self._caller.ask("POST", "/fleet/drain", FleetActionDone, body, _LOAD_S)

    def move(self, body: Move) -> FleetActionDone:
        """`POST /fleet/move`; returns when the model is on its node."""
        return self._caller.ask("POST", "/fleet/move", FleetActionDone, body, _LOAD_S)
