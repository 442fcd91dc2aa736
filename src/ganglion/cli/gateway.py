"""`ganglion gateway`: a fleet of nodes behind one address, until a signal ends it."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from ganglion import __version__
from ganglion.cli.flags import AT_LEAST_0, FLEET, OUTPUT_UNSET, PORT, SERVER, OutputFlags, option
from ganglion.cli.serve import SECURITY_UNSET, SecurityFlags, server_settings, storage_of
from ganglion.cli.terminal.console import say, say_error
from ganglion.config import Config, NodeConfig, home
from ganglion.core.errors import InvalidValue
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream.address import parse_node_url
from ganglion.wire.dialect import Wire
from ganglion.wire.dialects import ALL_WIRES, USUAL_WIRES

if TYPE_CHECKING:
    from ganglion.gateway.placing.catalogue import FleetCatalogue
    from ganglion.server.gateway.settings import GatewaySettings


_FOREIGN_SIGN: Final = "openai+"
_NAMED: Final = re.compile(r"(?P<name>[A-Za-z0-9_.\-]{1,64})=(?P<url>.+)")
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


def static_nodes(
    configured: Sequence[NodeConfig],
    flags: Sequence[str],
    node_key: str | None,
    environment: Mapping[str, str],
) -> tuple[NodeSpec, ...]:
    """All of them, each under a name of its own; raises InvalidValue."""
    specs = [
        *(_node_from_config(node, node_key, environment) for node in configured),
        *(_node_from_flag(flag, node_key) for flag in flags),
    ]
    found: dict[str, NodeSpec] = {}
    for spec in specs:
        if spec.name in found:
            raise InvalidValue(
                f"Two nodes are called {spec.name}.", param="node", hint="Name them, as in NAME=URL."
            )
        found[spec.name] = spec
    return tuple(found.values())


def _node_from_flag(flag: str, node_key: str | None) -> NodeSpec:
    """`URL`, `NAME=URL`, and either with `openai+` before the URL."""
    named = _NAMED.fullmatch(flag)
    name, url = (named["name"], named["url"]) if named else (None, flag)
    is_foreign = url.startswith(_FOREIGN_SIGN)
    config = NodeConfig(
        url=url.removeprefix(_FOREIGN_SIGN), name=name, kind="openai" if is_foreign else "ganglion"
    )
    return _node_from_config(config, node_key, {})


def _node_from_config(node: NodeConfig, node_key: str | None, environment: Mapping[str, str]) -> NodeSpec:
    address = parse_node_url(node.url)
    name = node.name or f"{address.host}-{address.port}".replace(":", "-")
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"{name!r} cannot be a node's name.", param="nodes", hint="Use letters, digits, _ . and -."
        )
    is_ours = node.kind == "ganglion"
    if is_ours and node.models is not None:
        raise InvalidValue(
            f"The node {name} is one of ours and has a list of models.",
            param="models",
            hint='That is for kind = "openai"; the catalogue says what goes where among ours.',
        )
    wires: frozenset[Wire] = ALL_WIRES if is_ours else USUAL_WIRES
    key = _node_key(node, name, environment)
    return NodeSpec(
        name=name,
        url=node.url.rstrip("/"),
        kind=node.kind,
        api_key=key or (node_key if is_ours else None),
        wires=wires if node.wires is None else frozenset(node.wires),
        max_in_flight=node.max_in_flight,
        cool_down_after=node.cool_down_after,
        cool_down_s=node.cool_down_s,
        models=None if node.models is None else frozenset(node.models),
    )


def _node_key(node: NodeConfig, name: str, environment: Mapping[str, str]) -> str | None:
    if node.key_env is not None and node.key_file is not None:
        raise InvalidValue(f"The node {name} has both key_env and key_file.", hint="Leave one out.")
    if node.key_env is not None:
        key = environment.get(node.key_env, "").strip()
        if not key:
            raise InvalidValue(
                f"The environment variable {node.key_env} of the node {name} is not set.",
                param="key_env",
                hint="Set it, or leave key_env out of a node that needs no key.",
            )
        return key
    if node.key_file is not None:
        try:
            return Path(node.key_file).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise InvalidValue(
                f"The key file {node.key_file} of the node {name} could not be read.",
                param="key_file",
                hint="It holds the key and nothing else, and has to be readable here.",
            ) from None
    return None


PORT_OF_GATEWAYS: Final = 8000
"""So that a gateway and a node on one machine need no flag to get on."""


@Parameter(name="*", group=SERVER)
@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServerFlags:
    """Where the gateway listens and how it lets go."""

    host: Annotated[str | None, option("Address to listen on (default 127.0.0.1: this machine only).")] = None
    port: Annotated[int | None, option("Port of HTTP; 0 takes a free one (default 8000).", PORT)] = None
    grpc_port: Annotated[
        int | None,
        option("Port of gRPC, for token sessions; 0 takes a free one (default: HTTP's and one more).", PORT),
    ] = None
    grpc: Annotated[bool | None, option("Serve token sessions over gRPC (default on).")] = None
    reuse_port: Annotated[
        bool | None, option("Share the ports with other processes that are started with this flag.")
    ] = None
    store: Annotated[
        str | None,
        option(
            "Where responses, keys and usage are kept: a SQLite file, postgresql://… for several gateways, "
            "or :memory: (default: data/ganglion.db in GANGLION_HOME)."
        ),
    ] = None
    drain_timeout: Annotated[
        float | None, option("Seconds that running answers get at shutdown (default 30).", AT_LEAST_0)
    ] = None

    def settings(self) -> Mapping[str, object]:
        """As config keys; None where a flag was not given."""
        return {
            "server.host": self.host,
            "server.port": self.port,
            "server.grpc_port": self.grpc_port,
            "server.grpc": self.grpc,
            "server.reuse_port": self.reuse_port,
            "store.url": self.store,
            "server.drain_timeout_s": self.drain_timeout,
        }


@Parameter(name="*", group=FLEET)
@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFlags:
    """Who answers."""

    node: Annotated[
        list[str] | None,
        Parameter(
            help="A node: URL, NAME=URL, or openai+URL for any OpenAI-compatible server; may be repeated.",
            negative=(),
        ),
    ] = None
    catalogue: Annotated[
        str | None, option("A models.toml: what may be loaded where, and who stands in for whom.")
    ] = None
    node_key: Annotated[
        str | None,
        option("The key that our nodes know gateways by. GANGLION_GATEWAY__NODE_KEY hides it from ps."),
    ] = None

    def settings(self) -> Mapping[str, object]:
        """As config keys; None where a flag was not given."""
        return {"gateway.catalogue": self.catalogue, "gateway.node_key": self.node_key}


FLEET_UNSET = FleetFlags()
GATEWAY_UNSET = GatewayServerFlags()


def gateway(
    *,
    fleet: FleetFlags = FLEET_UNSET,
    server: GatewayServerFlags = GATEWAY_UNSET,
    security: SecurityFlags = SECURITY_UNSET,
    output: OutputFlags = OUTPUT_UNSET,
) -> int:
    """Run a gateway: many nodes as one server."""
    # gRPC reads these when it is imported, and would write a line of every process that is started.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from ganglion.cli.flags import load_config, with_config_file
    from ganglion.cli.terminal.logs import set_up_logging
    from ganglion.server.bind import InsecureBind, StartRefused
    from ganglion.server.gateway.lifecycle import run_gateway

    output = with_config_file(output)
    flags = {**server.settings(), **security.settings(), **fleet.settings()}

    def configured() -> Config:
        return load_config(output, flags, defaults={"server.port": PORT_OF_GATEWAYS})

    config = configured()
    set_up_logging(config.log.level, config.log.format)
    settings = gateway_settings(config, fleet.node or ())
    try:
        run_gateway(
            settings,
            lambda url, rpc: say(_welcome(url, rpc, settings)),
            reload=lambda: gateway_settings(configured(), fleet.node or ()),
        )
    except StartRefused as refused:
        say_error(refused.message, refused.hint)
        return 2 if isinstance(refused, InsecureBind) else 1
    return 0


def gateway_settings(config: Config, nodes: Sequence[str]) -> "GatewaySettings":
    """Everything that a gateway needs, out of the operator's config; raises what is wrong with it."""
    from ganglion.server.gateway.settings import GatewaySettings

    gateway = config.gateway
    server = server_settings(config.server)
    return GatewaySettings(
        server=replace(server, max_in_flight=65536),
        nodes=static_nodes(config.nodes, nodes, gateway.node_key, os.environ),
        catalogue=_catalogue(gateway.catalogue),
        storage=storage_of(config.store, home(os.environ)),
        node_key=gateway.node_key,
        lease_s=gateway.lease_s,
        poll_s=gateway.poll_s,
        connect_s=gateway.connect_s,
        first_byte_s=gateway.first_byte_s,
        idle_s=gateway.idle_s,
        queue_requests=gateway.queue_requests,
        queue_s=gateway.queue_s,
        open_answer_tokens=gateway.open_answer_tokens,
        request_log=sys.stderr.write if config.log.level in ("debug", "info") else None,
        is_json_log=config.log.format == "json",
        has_tracing=gateway.tracing,
    )


def _catalogue(file: str | None) -> "FleetCatalogue":
    from ganglion.core.errors import InvalidValue
    from ganglion.gateway.placing.catalogue import FleetCatalogue, parse_catalogue

    if file is None:
        return FleetCatalogue()
    path = Path(file).expanduser()
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidValue(f"The catalogue {path} could not be read: {reason}.") from None
    return parse_catalogue(text, str(path))


def _welcome(url: str, rpc: str | None, settings: "GatewaySettings") -> str:
    nodes = "\n".join(f"  {spec.name}  {spec.url}" for spec in settings.nodes)
    nodes = nodes or f"  none yet: ganglion serve --port 8081 --join {url}"
    sessions = f"token sessions over gRPC on {rpc}\n" if rpc else ""
    return (
        f"ganglion gateway {__version__} listens on {url}\n{sessions}nodes:\n{nodes}\n\ntry:\n"
        f"  ganglion fleet status --gateway {url}\n"
        f"  curl {url}/v1/models\n"
    )
