"""The nodes that a command line and a config file declare."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ganglion.config import NodeConfig
from ganglion.core.errors import InvalidValue
from ganglion.gateway.address import parse_address
from ganglion.gateway.node import FOREIGN, OURS, NodeSpec, Wire

_FOREIGN_SIGN: Final = "openai+"
_NAMED: Final = re.compile(r"(?P<name>[A-Za-z0-9_.\-]{1,64})=(?P<url>.+)")
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


def declared_nodes(
    configured: Sequence[NodeConfig],
    flags: Sequence[str],
    node_key: str | None,
    environment: Mapping[str, str],
) -> tuple[NodeSpec, ...]:
    """All of them, each under a name of its own; raises InvalidValue."""
    specs = [
        *(_configured(node, node_key, environment) for node in configured),
        *(_typed(flag, node_key) for flag in flags),
    ]
    found: dict[str, NodeSpec] = {}
    for spec in specs:
        if spec.name in found:
            raise InvalidValue(
                f"Two nodes are called {spec.name}.", param="node", hint="Name them, as in NAME=URL."
            )
        found[spec.name] = spec
    return tuple(found.values())


def _typed(flag: str, node_key: str | None) -> NodeSpec:
    """`URL`, `NAME=URL`, and either with `openai+` before the URL."""
    named = _NAMED.fullmatch(flag)
    name, url = (named["name"], named["url"]) if named else (None, flag)
    is_foreign = url.startswith(_FOREIGN_SIGN)
    config = NodeConfig(
        url=url.removeprefix(_FOREIGN_SIGN), name=name, kind="openai" if is_foreign else "ganglion"
    )
    return _configured(config, node_key, {})


def _configured(node: NodeConfig, node_key: str | None, environment: Mapping[str, str]) -> NodeSpec:
    address = parse_address(node.url)
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
    wires: frozenset[Wire] = OURS if is_ours else FOREIGN
    key = _key(node, name, environment)
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


def _key(node: NodeConfig, name: str, environment: Mapping[str, str]) -> str | None:
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
