"""The flags of `ganglion serve` that join a fleet."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ganglion.cli.options import JOINING, option
from ganglion.config import JoinConfig

if TYPE_CHECKING:
    from ganglion.server.joining import JoinSettings


@Parameter(name="*", group=JOINING)
@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFlags:
    """Which gateways the node joins."""

    join: Annotated[
        list[str] | None,
        Parameter(help="URL of a gateway to join; may be repeated.", negative=()),
    ] = None
    join_key: Annotated[
        str | None, option("A key of the gateway that may join nodes. GANGLION_JOIN__KEY hides it from ps.")
    ] = None
    node_name: Annotated[
        str | None, option("What the node is called in the fleet (default: host name and port).")
    ] = None
    advertise: Annotated[
        str | None, option("URL under which the gateway reaches the node (default: where it listens).")
    ] = None

    def settings(self) -> Mapping[str, object]:
        """As config keys; None where a flag was not given."""
        return {
            "join.urls": self.join,
            "join.key": self.join_key,
            "join.name": self.node_name,
            "join.advertise": self.advertise,
        }


JOIN_UNSET = JoinFlags()


def join_settings(config: JoinConfig) -> "JoinSettings":
    """Which gateways to join, out of the operator's config."""
    from ganglion.server.joining import JoinSettings

    return JoinSettings(config.urls, config.key, config.name, config.advertise)
