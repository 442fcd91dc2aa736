"""The endpoints about the fleet: its health, nodes that join and leave, and what operators change."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ganglion.core.errors import GanglionError, InvalidValue, OnlyHolder
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.membership import NodeLeases
from ganglion.gateway.node import NodeView, Replica
from ganglion.gateway.placing.catalogue_view import CatalogueView
from ganglion.gateway.placing.loader import FleetLoader
from ganglion.gateway.routing.decision import (
    Chooser,
    ChosenNode,
    ColdModel,
    NoRoute,
    RoutingRequest,
    TranslatedNode,
)
from ganglion.server.endpoints.http import json_response, read_json
from ganglion.server.gate import Gate
from ganglion.server.settings import ServerSettings
from ganglion.wire import fleet as fleet_wire
from ganglion.wire import fleet_overview as overview_wire
from ganglion.wire import health
from ganglion.wire.dialects import TRANSLATION_WIRE
from ganglion.wire.fleet import ReplicaState
from ganglion.wire.fleet_overview import (
    Drain,
    FleetOverview,
    Move,
    NodeDevice,
    NodeOverview,
    Unservable,
    status_of,
)
from ganglion.wire.headers import RETRY_AFTER


def _overview_of(fleet: Fleet, chooser: Chooser, known: frozenset[str]) -> FleetOverview:
    """The whole fleet now; `known` are the models that the catalogue promises."""
    nodes = tuple(_node_overview(view, fleet) for _, view in sorted(fleet.nodes.items()))
    unservable = _unservable(fleet, chooser, known)
    return FleetOverview(status=status_of(nodes, unservable), nodes=nodes, unservable=unservable)


def _unservable(fleet: Fleet, chooser: Chooser, known: frozenset[str]) -> tuple[Unservable, ...]:
    """Models that no node can serve now, though one listed them or the catalogue promises them."""
    held = {
        replica.id
        for view in fleet.nodes.values()
        for replica in view.replicas
        if replica.status != "unloaded"
    }
    found = []
    for model in sorted(held | known):
        decision = chooser.choose(RoutingRequest(model, TRANSLATION_WIRE))
        if isinstance(decision, NoRoute) and not decision.waits_for:
            found.append(Unservable(model, decision.error.code, decision.error.message))
        elif isinstance(decision, ColdModel) and (failed := fleet.unloadable(decision.model)) is not None:
            found.append(Unservable(model, failed.code, failed.why))
    return tuple(found)


def _node_overview(view: NodeView, fleet: Fleet) -> NodeOverview:
    spec, heard_s = view.spec, view.last_heard_s
    return NodeOverview(
        name=view.name,
        url=spec.url,
        kind=spec.kind,
        healthy=view.is_healthy,
        draining=view.is_draining,
        cooling=fleet.is_cooling(view.name),
        in_flight=fleet.in_flight.get(view.name, 0),
        heard_s_ago=None if heard_s is None else round(max(0.0, time.monotonic() - heard_s), 3),
        error=view.error,
        version=view.version,
        grpc=view.grpc or spec.grpc,
        epoch=spec.epoch,
        devices=tuple(
            NodeDevice(device.index, device.name, device.total_mb, device.free_mb) for device in view.devices
        ),
        models=tuple(_replica_state(replica) for replica in view.replicas),
        engines={name: tuple(sorted(fields)) for name, fields in view.engines.items()},
    )


def _replica_state(replica: Replica) -> ReplicaState:
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


def _only_holder(node: str, missing: Mapping[str, str]) -> OnlyHolder:
    reasons = " ".join(f"{model}: {why}" for model, why in missing.items())
    return OnlyHolder(
        f"No other node than {node} holds {', '.join(missing)}, and requests for it would fail. {reasons}",
        param="node",
        hint="Force it to drain the node all the same.",
    )


async def _drain_node(fleet: Fleet, loader: FleetLoader, chooser: Chooser, request: Drain) -> list[str]:
    """Load elsewhere what only this node holds, and then send it no new requests; what runs on it goes on.

    Raises OnlyHolder where no other node can load a model, unless the drain is forced.
    """
    view = fleet.node_named(request.node)
    if request.undo:
        fleet.set_draining(view.name, is_draining=False)
        return [f"{view.name} takes work again"]
    steps, missing = [], {}
    for replica in view.replicas if view.takes_work else ():
        if not replica.is_servable:
            continue
        try:
            is_loaded = await loader.load_elsewhere(view.name, replica)
            steps.append(f"{replica.id} {'was loaded' if is_loaded else 'is served'} elsewhere")
        except GanglionError as error:
            if _has_fallback(chooser, loader.name_of(view.name, replica), view.name):
                steps.append(f"{replica.id} is answered for by a fallback")
            else:
                missing[replica.id] = error.message
    if missing and not request.force:
        raise _only_holder(view.name, missing)
    fleet.set_draining(view.name, is_draining=True)
    alone = [f"{model} is served by no node now: {why}" for model, why in missing.items()]
    return [f"{view.name} takes no new work", *steps, *alone]


def _has_fallback(chooser: Chooser, model: str, node: str) -> bool:
    """Whether requests for a model are answered without the node, by a fallback."""
    decision = chooser.choose(RoutingRequest(model, TRANSLATION_WIRE, tried=frozenset((node,))))
    return isinstance(decision, ChosenNode | TranslatedNode)


async def _move_model(fleet: Fleet, loader: FleetLoader, request: Move) -> list[str]:
    """Load a model on a node, and then unload it from the others, unless they keep it."""
    target = fleet.node_named(request.node)
    others = [name for name in loader.holders(request.model) if name != target.name]
    await loader.load_on(request.model, target.name)
    steps = [f"{request.model} is loaded on {target.name}"]
    for name in () if request.keep else others:
        await loader.unload_from(request.model, name)
        steps.append(f"{name} has let it go")
    return steps


@dataclass(frozen=True, slots=True)
class GatewayHealthEndpoints:
    """`/health` and `/health/ready`."""

    fleet: Fleet
    chooser: Chooser
    gate: Gate
    catalogue_view: CatalogueView
    began_s: float

    def routes(self) -> list[BaseRoute]:
        """The routes of these endpoints."""
        return [Route("/health", self.health), Route("/health/ready", self.ready)]

    async def health(self, _: Request) -> Response:
        """`GET /health`."""
        overview = _overview_of(self.fleet, self.chooser, self.catalogue_view.promised)
        return json_response(
            overview_wire.encode(
                overview_wire.GatewayHealth(
                    status=overview.status,
                    uptime_s=round(time.monotonic() - self.began_s, 3),
                    draining=self.gate.is_draining,
                    nodes=overview_wire.NodeCount(
                        sum(node.healthy for node in overview.nodes), len(overview.nodes)
                    ),
                    unservable=overview.unservable,
                )
            )
        )

    async def ready(self, _: Request) -> Response:
        """`GET /health/ready`: whether any node takes requests."""
        if not self.gate.is_draining and any(view.takes_work for view in self.fleet.nodes.values()):
            return json_response(health.probe("ok"))
        status: health.NodeStatus = "draining" if self.gate.is_draining else "loading"
        return Response(health.probe(status), 503, {RETRY_AFTER: "2"}, "application/json")


@dataclass(frozen=True, slots=True)
class FleetEndpoints:
    """The routes under `/fleet`, for operators and for nodes that join."""

    fleet: Fleet
    chooser: Chooser
    membership: NodeLeases
    loader: FleetLoader
    probe_now: Callable[[str], None]
    settings: ServerSettings
    catalogue_view: CatalogueView

    def routes(self) -> list[BaseRoute]:
        """The routes of these endpoints."""
        return [
            Route("/fleet", self.overview),
            Route("/fleet/join", self.join, methods=["POST"]),
            Route("/fleet/leave", self.leave, methods=["POST"]),
            Route("/fleet/drain", self.drain, methods=["POST"]),
            Route("/fleet/move", self.move, methods=["POST"]),
            Route("/fleet/load", self.load, methods=["POST"]),
        ]

    async def overview(self, _: Request) -> Response:
        """`GET /fleet`."""
        return json_response(
            overview_wire.encode(_overview_of(self.fleet, self.chooser, self.catalogue_view.promised))
        )

    async def join(self, request: Request) -> Response:
        """`POST /fleet/join`."""
        body = fleet_wire.parse_join(await self._body(request))
        try:
            lease = self.membership.join(body)
        except InvalidValue:
            # Perhaps the node that holds the name is gone, and this one took its place.
            self.probe_now(body.name)
            raise
        return json_response(fleet_wire.encode(lease))

    async def leave(self, request: Request) -> Response:
        """`POST /fleet/leave`."""
        body = fleet_wire.parse_leave(await self._body(request))
        self.membership.leave(body)
        return _done(f"{body.name} has left")

    async def drain(self, request: Request) -> Response:
        """`POST /fleet/drain`."""
        body = overview_wire.parse_drain(await self._body(request))
        return _done(*await _drain_node(self.fleet, self.loader, self.chooser, body))

    async def move(self, request: Request) -> Response:
        """`POST /fleet/move`."""
        body = overview_wire.parse_move(await self._body(request))
        return _done(*await _move_model(self.fleet, self.loader, body))

    async def load(self, request: Request) -> Response:
        """`POST /fleet/load`."""
        body = overview_wire.parse_load(await self._body(request))
        await self.loader.load(body.model)
        return _done(f"{body.model} is loaded")

    async def _body(self, request: Request) -> bytes:
        return await read_json(request.scope, request.receive, self.settings)


def _done(*steps: str) -> Response:
    return json_response(overview_wire.encode(overview_wire.FleetActionDone(steps=steps)))
