"""Turns what a node answered into what the fleet keeps. Pure.

Law: nothing here is larger than its bound, whatever the node said. What could still be served with the rest
cut off is cut; a list of models beyond its bound is refused as a whole, for a part of it would read as models
that are gone.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from ganglion.core.errors import InvalidValue
from ganglion.core.sampling import Sampling
from ganglion.gateway.node import FOREIGN_SAMPLING, DeviceMemory, NodeSpec, NodeView, Replica
from ganglion.gateway.upstream.address import parse_node_url
from ganglion.wire.fleet import NodeState, ReplicaState
from ganglion.wire.fleet_overview import NodeOverview
from ganglion.wire.health import DeviceHealth
from ganglion.wire.upstream.polling import ListedModel, PolledDiscovery, PolledGrpc, PolledHealth

MAX_MODELS: Final = 4096
MAX_DIGEST: Final = 1024
_MAX_DEVICES: Final = 256
_MAX_NAMES: Final = 64
"""Aliases, capabilities or devices of one model."""
_MAX_NAME_CHARS: Final = 512
_MAX_TEXT_CHARS: Final = 1000
"""Of an error or a version, which people read."""
_MAX_COUNT: Final = 2**53
_LAST_PORT: Final = 65535


def state_view(spec: NodeSpec, state: NodeState, last_heard_s: float) -> NodeView:
    """One of our nodes that answered `/fleet/state`; raises InvalidValue."""
    return NodeView(
        spec,
        is_healthy=True,
        is_draining=state.status == "draining",
        replicas=_replicas(state.models, {}),
        devices=_devices(state.devices),
        engines=_engines(state.engines),
        digest=frozenset(_names(state.digest[-MAX_DIGEST:], MAX_DIGEST)),
        boot=_name(state.boot),
        last_heard_s=last_heard_s,
    )


def polled_view(
    spec: NodeSpec, models: tuple[ReplicaState, ...], health: PolledHealth | None, last_heard_s: float
) -> NodeView:
    """One of our nodes that is too old for that; without its health it is taken to be healthy and idle."""
    loads = {} if health is None else {load.id: (load.in_flight, load.queued) for load in health.models}
    return NodeView(
        spec,
        is_healthy=True,
        is_draining=health is not None and health.status == "draining",
        replicas=_replicas(models, loads),
        devices=() if health is None else _devices(health.devices),
        last_heard_s=last_heard_s,
    )


def listed_view(spec: NodeSpec, models: tuple[ListedModel, ...], last_heard_s: float) -> NodeView:
    """A foreign server: all models that it lists can be requested, or those that its declaration names."""
    _check(models)
    replicas = {
        model.id: Replica(
            _name(model.id),
            "loaded",
            aliases=_names(model.aliases, _MAX_NAMES),
            context_length=model.context_length,
            created_s=model.created_s,
            sampling=FOREIGN_SAMPLING,
            capabilities=("vision",) if spec.vision & {model.id, "*"} else (),
        )
        for model in models
        if spec.models is None or model.id in spec.models
    }
    return NodeView(spec, is_healthy=True, replicas=tuple(replicas.values()), last_heard_s=last_heard_s)


def overview_view(node: NodeOverview) -> NodeView:
    """A node as another gateway reports it; raises InvalidValue."""
    return NodeView(
        NodeSpec(_name(node.name), node.url, node.kind),
        is_healthy=node.healthy,
        is_draining=node.draining,
        replicas=_replicas(node.models, {}),
        devices=tuple(
            _device(each.index, each.name, each.memory_total_mb, each.memory_free_mb)
            for each in node.devices[:_MAX_DEVICES]
        ),
        engines=_engines(node.engines),
        error=None if node.error is None else node.error[:_MAX_TEXT_CHARS],
    )


def version_of(discovery: PolledDiscovery) -> str:
    """The version that runs there, for people."""
    return discovery.version[:_MAX_TEXT_CHARS]


def grpc_of(spec: NodeSpec, said: PolledGrpc | None) -> str | None:
    """The gRPC address of a node, as the gateway reaches it; None where it serves no sessions.

    A node names the address that it bound. One that means every address, or only the node's own machine, is
    not an address of the node to anybody else, so the host is then the one of its URL.
    """
    if said is None or not 0 < said.port <= _LAST_PORT:
        return None
    host = _name(said.host)
    if _is_nowhere(host):
        host = parse_node_url(spec.url).host
    return f"[{host}]:{said.port}" if ":" in host else f"{host}:{said.port}"


def parse_grpc(text: str) -> PolledGrpc:
    """`host:port`, as a node names it that joins; raises InvalidValue."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= _LAST_PORT:
        raise InvalidValue(f"Invalid value for 'grpc': expected HOST:PORT, got {text[:200]!r}.", param="grpc")
    return PolledGrpc(host.removeprefix("[").removesuffix("]"), int(port[:6]))


def _is_nowhere(host: str) -> bool:
    if host in ("", "localhost", "*"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_unspecified or address.is_loopback


def _replicas(models: tuple[ReplicaState, ...], loads: dict[str, tuple[int, int]]) -> tuple[Replica, ...]:
    _check(models)
    return tuple({model.id: _replica(model, loads.get(model.id)) for model in models}.values())


def _replica(model: ReplicaState, load: tuple[int, int] | None) -> Replica:
    in_flight, queued = load or (model.in_flight, model.queued)
    return Replica(
        id=_name(model.id),
        status=model.status,
        aliases=_names(model.aliases, _MAX_NAMES),
        engine=model.engine[:_MAX_NAME_CHARS],
        in_flight=_count(in_flight),
        queued=_count(queued),
        slots_total=_count(model.slots_total),
        context_length=_count(model.context_length),
        capabilities=_names(model.capabilities, _MAX_NAMES),
        memory_mb=_count(model.memory_mb),
        is_pinned=model.pinned,
        priority=max(-_MAX_COUNT, min(model.priority, _MAX_COUNT)),
        last_used_s=model.last_used,
        created_s=_count(model.created),
        devices=_names(model.devices, _MAX_NAMES),
        error=None if model.error is None else model.error[:_MAX_TEXT_CHARS],
        sampling=model.sampling or Sampling(),
    )


def _devices(devices: tuple[DeviceHealth, ...]) -> tuple[DeviceMemory, ...]:
    return tuple(
        _device(each.index, each.name, _count(each.memory_used_mb) + free_mb, free_mb)
        for each in devices[:_MAX_DEVICES]
        for free_mb in (_count(each.memory_free_mb),)
    )


def _engines(engines: Mapping[str, tuple[str, ...]]) -> dict[str, frozenset[str]]:
    known = _names(engines, _MAX_NAMES)
    return {name: frozenset(_names(engines[name], _MAX_NAMES)) for name in known}


def _device(index: int, name: str, total_mb: int, free_mb: int) -> DeviceMemory:
    return DeviceMemory(index, name[:_MAX_NAME_CHARS], _count(total_mb), _count(free_mb))


def _check(models: tuple[object, ...]) -> None:
    if len(models) > MAX_MODELS:
        raise InvalidValue(f"It lists {len(models)} models; at most {MAX_MODELS} are believed.")


def _name(text: str) -> str:
    if len(text) > _MAX_NAME_CHARS:
        raise InvalidValue(
            f"It gave a name of {len(text)} characters; at most {_MAX_NAME_CHARS} are believed."
        )
    return text


def _names(texts: Iterable[str], most: int) -> tuple[str, ...]:
    return tuple(text for text in texts if len(text) <= _MAX_NAME_CHARS)[:most]


def _count(number: int) -> int:
    return max(0, min(number, _MAX_COUNT))
