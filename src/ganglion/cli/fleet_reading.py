"""A fleet as commands read it: from a gateway's `GET /fleet`, or from each node's `/models` and `/health`."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ganglion.core.errors import GanglionError, InvalidApiKey, UpstreamUnavailable
from ganglion.gateway.address import parse_address
from ganglion.gateway.node import DeviceRoom, NodeKind, NodeSpec, NodeView, Replica
from ganglion.gateway.outbound import Answer, Outbound
from ganglion.gateway.pool import Pools
from ganglion.wire.fleet import ReplicaState
from ganglion.wire.health import Device, Health
from ganglion.wire.management import HeldModel

T = TypeVar("T")

TIMEOUT_S = 10.0


class FleetNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of `GET /fleet`, as far as commands read it."""

    name: str
    url: str
    kind: NodeKind = "ganglion"
    healthy: bool = False
    draining: bool = False
    models: tuple[ReplicaState, ...] = ()
    devices: tuple[Device, ...] = ()
    error: str | None = None


class FleetBody(msgspec.Struct, frozen=True):
    """The body of `GET /fleet`."""

    nodes: tuple[FleetNode, ...]


_fleet = msgspec.json.Decoder(FleetBody)
_models = msgspec.json.Decoder(list[HeldModel])
_health = msgspec.json.Decoder(Health)


def named(node: str, api_key: str | None) -> NodeSpec:
    """The node that `NAME=URL` or `URL` means; raises InvalidValue."""
    name, equals, url = node.partition("=")
    if not equals or "://" in name:
        name, url = "", node
    address = parse_address(url if "://" in url else f"http://{url}")
    name = name or f"{address.host}-{address.port}"
    return NodeSpec(name, url if "://" in url else f"http://{url}", api_key=api_key)


async def read_gateway(url: str, api_key: str | None) -> dict[str, NodeView]:
    """Every node that a gateway knows; raises where it does not answer."""
    pools = Pools()
    try:
        body = await _get(Outbound(pools), named(url, api_key), "/fleet", _fleet)
    finally:
        pools.close()
    return {node.name: _from_gateway(node) for node in body.nodes}


async def read_nodes(specs: Sequence[NodeSpec]) -> dict[str, NodeView]:
    """Every one of these nodes; one that does not answer is unhealthy, and says why."""
    pools = Pools()
    try:
        views = await asyncio.gather(*(_read_node(Outbound(pools), spec) for spec in specs))
    finally:
        pools.close()
    return {view.name: view for view in views}


async def _read_node(outbound: Outbound, spec: NodeSpec) -> NodeView:
    try:
        models = await _get(outbound, spec, "/models", _models)
        health = await _get(outbound, spec, "/health", _health)
    except InvalidApiKey:
        raise
    except GanglionError as error:
        return NodeView(spec, error=error.message)
    busy = {model.id: model for model in health.models}
    return NodeView(
        spec,
        is_healthy=True,
        is_draining=health.status == "draining",
        replicas=tuple(
            Replica(
                model.id,
                model.status,
                aliases=model.aliases,
                engine=model.engine,
                in_flight=busy[model.id].in_flight if model.id in busy else 0,
                queued=busy[model.id].queued if model.id in busy else 0,
                memory_mb=model.memory_mb,
                is_pinned=model.pinned,
                priority=model.priority,
                last_used_s=model.last_used,
                devices=model.devices,
            )
            for model in models
        ),
        devices=_rooms(health.devices),
    )


def _from_gateway(node: FleetNode) -> NodeView:
    return NodeView(
        NodeSpec(node.name, node.url, node.kind),
        is_healthy=node.healthy,
        is_draining=node.draining,
        replicas=tuple(
            Replica(
                model.id,
                model.status,
                aliases=model.aliases,
                engine=model.engine,
                in_flight=model.in_flight,
                queued=model.queued,
                memory_mb=model.memory_mb,
                is_pinned=model.pinned,
                priority=model.priority,
                last_used_s=model.last_used,
                devices=model.devices,
            )
            for model in node.models
        ),
        devices=_rooms(node.devices),
        error=node.error,
    )


def _rooms(devices: Sequence[Device]) -> tuple[DeviceRoom, ...]:
    return tuple(
        DeviceRoom(
            device.index,
            device.name,
            device.memory_used_mb + device.memory_free_mb,
            device.memory_free_mb,
        )
        for device in devices
    )


async def _get(outbound: Outbound, spec: NodeSpec, path: str, decoder: msgspec.json.Decoder[T]) -> T:
    answer: Answer = await outbound.call(spec, "GET", path, timeout_s=TIMEOUT_S)
    if answer.status == InvalidApiKey.status:
        raise InvalidApiKey(
            f"{spec.url} refuses the key.", hint="Give a key with --api-key, or in GANGLION_API_KEY."
        )
    try:
        if answer.status != 200:
            raise msgspec.DecodeError(f"status {answer.status}")
        return decoder.decode(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise UpstreamUnavailable(
            f"What {spec.url} answers to {path} is not what a node or a gateway answers."
        ) from None
