"""The fleet in the words of its wire: every node as last heard of, and what nobody can serve."""

import time
from collections.abc import Mapping
from types import MappingProxyType

from ganglion.gateway.decision import Asked, Chooser, Cold, Refused
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.node import NodeView, Replica
from ganglion.wire.fleet import ReplicaState
from ganglion.wire.overview import FleetOverview, NodeDevice, NodeOverview, Unservable, status_of

_NOTHING: Mapping[str, int] = MappingProxyType({})


def overview_of(
    fleet: Fleet, chooser: Chooser, known: frozenset[str], elsewhere: Mapping[str, int] = _NOTHING
) -> FleetOverview:
    """The whole fleet now; `known` are models that the catalogue promises, `elsewhere` counts requests of
    this gateway's other processes by node."""
    nodes = tuple(_node(view, fleet, elsewhere.get(view.name, 0)) for _, view in sorted(fleet.nodes.items()))
    unservable = _unservable(fleet, chooser, known)
    return FleetOverview(status=status_of(nodes, unservable), nodes=nodes, unservable=unservable)


def _unservable(fleet: Fleet, chooser: Chooser, known: frozenset[str]) -> tuple[Unservable, ...]:
    """Models that some node had when it was last heard of, or that the catalogue promises."""
    held = {
        replica.id
        for view in fleet.nodes.values()
        for replica in view.replicas
        if replica.status != "unloaded"
    }
    found = []
    for model in sorted(held | known):
        decision = chooser.choose(Asked(model, "chat"))
        if isinstance(decision, Refused) and not decision.waits_for:
            found.append(Unservable(model, decision.error.code, decision.error.message))
        elif isinstance(decision, Cold) and (failed := fleet.unloadable(decision.model)) is not None:
            found.append(Unservable(model, failed.code, failed.why))
    return tuple(found)


def _node(view: NodeView, fleet: Fleet, elsewhere: int) -> NodeOverview:
    spec = view.spec
    return NodeOverview(
        name=view.name,
        url=spec.url,
        kind=spec.kind,
        healthy=view.is_healthy,
        draining=view.is_draining,
        cooling=fleet.is_cooling(view.name),
        in_flight=fleet.in_flight.get(view.name, 0) + elsewhere,
        heard_s_ago=None if view.heard_s is None else round(max(0.0, time.monotonic() - view.heard_s), 3),
        error=view.error,
        version=view.version,
        grpc=view.grpc or spec.grpc,
        epoch=spec.epoch,
        devices=tuple(
            NodeDevice(device.index, device.name, device.total_mb, device.free_mb) for device in view.devices
        ),
        models=tuple(_replica(replica) for replica in view.replicas),
    )


def _replica(replica: Replica) -> ReplicaState:
    return ReplicaState(
        id=replica.id,
        status=replica.status,
        engine=replica.engine,
        aliases=replica.aliases,
        in_flight=replica.in_flight,
        queued=replica.queued,
        slots_total=replica.slots_total,
        context_length=replica.context_length,
        capabilities=replica.capabilities,
        memory_mb=replica.memory_mb,
        pinned=replica.is_pinned,
        priority=replica.priority,
        last_used=replica.last_used_s,
        created=replica.created_s,
        devices=replica.devices,
        error=replica.error,
    )
