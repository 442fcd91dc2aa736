"""`ganglion gateway`: a fleet of nodes behind one address, until a signal ends it."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from msgspec import structs

from ganglion import __version__
from ganglion.cli.flags import (
    FLEET,
    OUTPUT_UNSET,
    SERVER,
    FlagGroup,
    OutputFlags,
    flag,
    flag_group,
    load_config,
    with_config_file,
)
from ganglion.cli.serve import SECURITY_UNSET, SecurityFlags, store_target
from ganglion.cli.terminal.console import say, say_error
from ganglion.cli.terminal.logs import set_up_logging
from ganglion.config import Config
from ganglion.core.errors import InvalidValue
from ganglion.core.home import home_folder
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.settings import DeclaredNode
from ganglion.gateway.upstream.address import parse_node_url
from ganglion.registry.files.whole_files import read_text
from ganglion.server.settings import BuildInfo
from ganglion.wire.dialect import Wire
from ganglion.wire.dialects import ALL_WIRES, USUAL_WIRES

if TYPE_CHECKING:
    from ganglion.gateway.placing.catalogue import FleetCatalogue
    from ganglion.server.gateway.setup import GatewaySetup


_FOREIGN_SIGN: Final = "openai+"
_NAMED: Final = re.compile(r"(?P<name>[A-Za-z0-9_.\-]{1,64})=(?P<url>.+)")
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


def static_nodes(
    configured: Sequence[DeclaredNode],
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
    config = DeclaredNode(
        url=url.removeprefix(_FOREIGN_SIGN), name=name, kind="openai" if is_foreign else "ganglion"
    )
    return _node_from_config(config, node_key, {})


def _node_from_config(node: DeclaredNode, node_key: str | None, environment: Mapping[str, str]) -> NodeSpec:
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
        vision=frozenset(node.vision),
        max_in_flight=node.max_in_flight,
        cool_down_after=node.cool_down_after,
        cool_down_s=node.cool_down_s,
        models=None if node.models is None else frozenset(node.models),
    )


def _node_key(node: DeclaredNode, name: str, environment: Mapping[str, str]) -> str | None:
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
        return read_text(
            Path(node.key_file).expanduser(),
            f"The node {name}'s key file",
            param="key_file",
            hint="It holds the key and nothing else, and has to be readable here.",
        ).strip()
    return None


_PORT_OF_GATEWAYS: Final = 8000
"""So that a gateway and a node on one machine need no flag to get on."""


@flag_group(SERVER)
class GatewayServerFlags(FlagGroup):
    """Where the gateway listens and how it shuts down."""

    host = flag("server.host")
    port = flag("server.port", default=_PORT_OF_GATEWAYS)
    grpc_port = flag("server.grpc_port")
    grpc = flag("server.grpc")
    reuse_port = flag("server.reuse_port")
    store = flag("store.url")
    drain_timeout = flag("server.drain_timeout_s")


@flag_group(FLEET)
class FleetFlags(FlagGroup):
    """The nodes that answer."""

    node: Annotated[
        list[str] | None,
        Parameter(
            help="A node: URL, NAME=URL, or openai+URL for any OpenAI-compatible server. May be repeated.",
            negative=(),
        ),
    ] = None
    catalogue = flag("gateway.catalogue")
    node_key = flag("gateway.node_key", is_secret=True)


_FLEET_UNSET = FleetFlags()
_GATEWAY_UNSET = GatewayServerFlags()


def gateway(
    *,
    fleet: FleetFlags = _FLEET_UNSET,
    server: GatewayServerFlags = _GATEWAY_UNSET,
    security: SecurityFlags = SECURITY_UNSET,
    output: OutputFlags = OUTPUT_UNSET,
) -> int:
    """Run a gateway: many nodes as one server."""
    # gRPC reads these when it is imported, and would write a line of every process that is started.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from ganglion.server.bind import InsecureBind, StartRefused
    from ganglion.server.gateway.lifecycle import run_gateway

    output = with_config_file(output)
    flags = [*server.settings(), *security.settings(), *fleet.settings()]

    def configured() -> Config:
        return load_config(output, flags, defaults={"server.port": _PORT_OF_GATEWAYS})

    config = configured()
    set_up_logging(config.log.level, config.log.format)
    settings = gateway_setup(config, fleet.node or ())
    try:
        run_gateway(
            settings,
            lambda url, rpc: say(_welcome(url, rpc, settings)),
            reload=lambda: gateway_setup(configured(), fleet.node or ()),
        )
    except StartRefused as refused:
        say_error(refused.message, refused.hint)
        return 2 if isinstance(refused, InsecureBind) else 1
    return 0


def gateway_setup(config: Config, nodes: Sequence[str]) -> "GatewaySetup":
    """Everything that a gateway needs, out of the operator's config; raises what is wrong with it."""
    from ganglion.server.gateway.setup import GatewaySetup

    config.server.check()
    build = BuildInfo(version=__version__)
    return GatewaySetup(
        server=structs.replace(config.server, build=build, max_in_flight=65536),
        gateway=config.gateway,
        nodes=static_nodes(config.nodes, nodes, config.gateway.node_key, os.environ),
        catalogue=_catalogue(config.gateway.catalogue),
        storage=store_target(config.store, home_folder(os.environ)),
        request_log=sys.stderr.write if config.log.level in ("debug", "info") else None,
        is_json_log=config.log.format == "json",
    )


def _catalogue(file: str | None) -> "FleetCatalogue":
    from ganglion.gateway.placing.catalogue import FleetCatalogue, parse_catalogue

    if file is None:
        return FleetCatalogue()
    path = Path(file).expanduser()
    return parse_catalogue(read_text(path, "The catalogue"), str(path))


def _welcome(url: str, rpc: str | None, settings: "GatewaySetup") -> str:
    nodes = "\n".join(f"  {spec.name}  {spec.url}" for spec in settings.nodes)
    nodes = nodes or f"  none yet: ganglion serve --port 8081 --join {url}"
    sessions = f"token sessions over gRPC on {rpc}\n" if rpc else ""
    return (
        f"ganglion gateway {__version__} listens on {url}\n{sessions}nodes:\n{nodes}\n\ntry:\n"
        f"  ganglion fleet status --gateway {url}\n"
        f"  curl {url}/v1/models\n"
    )
