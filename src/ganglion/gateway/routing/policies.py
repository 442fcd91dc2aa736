"""Chooses the node that answers a request. Pure.

Law: a request goes to a node that takes work, holds the model, was not tried, is not cooling down and has
room; the one whose prefix cache knows the conversation first, else the one that rendezvous hashing
names, and neither when it carries more than its share. Without a conversation, the least loaded.
"""

import zlib
from collections.abc import Mapping, Set
from operator import itemgetter
from typing import Final, Protocol

from ganglion.core.errors import (
    GanglionError,
    ModelLoading,
    ModelNotFound,
    ModelRecovering,
    ModelUnavailable,
    Overloaded,
    ShuttingDown,
    UpstreamUnavailable,
    VisionUnsupported,
    WireUnsupported,
)
from ganglion.gateway.placing.placement import Infeasible, placement_error
from ganglion.gateway.routing.decision import (
    ChosenNode,
    ColdModel,
    NoRoute,
    RoutingDecision,
    RoutingRequest,
    TranslatedNode,
)
from ganglion.gateway.routing.table import ModelEntry, RoutableReplica, RoutingTable
from ganglion.registry.naming.names import shortened
from ganglion.wire.dialect import Wire
from ganglion.wire.dialects import TRANSLATABLE_WIRES

LIGHT: Final = 2
"""So many requests are no load: a conversation does not leave its cache for one neighbour."""
LOYALTY: Final = 2
"""So many requests above its share a node may carry of conversations that it knows."""
_MASK: Final = 2**64 - 1
_KNOWN: Final = 2**64


class _NodeLoads(Protocol):
    """How busy nodes are, and which are cooling down; a Fleet is one."""

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Requests of this gateway that run on each node."""

    @property
    def loading(self) -> Set[str]:
        """Models that are loading on behalf of this gateway."""

    @property
    def reserved(self) -> Set[str]:
        """Nodes on which a request runs alone."""

    def is_cooling(self, name: str) -> bool:
        """Whether a node is cooling down after failures."""

    def is_unloadable(self, model: str) -> bool:
        """Whether no node could load a model a moment ago, and none has come since."""


def route(
    table: RoutingTable, request: RoutingRequest, loads: _NodeLoads, turn: int = 0, last: str = ""
) -> RoutingDecision:
    """Decide where a request goes; `turn` decides between nodes that are equal otherwise.

    `last` is where the conversation went before, which a node reports only a moment later.
    """
    entry = table.entry(request.model)
    if entry is None:
        return NoRoute(_unknown(request))
    replica = _pick(entry.ready(request.wire), request, loads, turn, last)
    if replica is not None:
        return replica.chosen
    return _otherwise(table, entry, request, loads, turn)


def share(total: int, nodes: int) -> int:
    """How much one of these nodes may carry before a conversation is sent on: a quarter above the mean."""
    return max(LIGHT, -(-5 * (total + 1) // (4 * nodes)))


def _pick(
    replicas: tuple[RoutableReplica, ...],
    request: RoutingRequest,
    loads: _NodeLoads,
    turn: int,
    last: str = "",
) -> RoutableReplica | None:
    tried, in_flight, reserved = request.tried, loads.in_flight, loads.reserved
    has_images = request.has_images
    free: list[tuple[int, RoutableReplica]] = []
    total = 0
    for replica in replicas:
        name = replica.name
        if replica.is_full or name in tried or name in reserved or loads.is_cooling(name):
            continue
        if has_images and not replica.sees:
            continue
        load = in_flight.get(name, 0)
        if (replica.cap is not None and load >= replica.cap) or (load and request.is_alone):
            continue
        # What the node reports includes our own requests: the larger of the two counts nothing twice.
        load = replica.load if replica.load > load else load
        total += load
        free.append((load, replica))
    if len(free) < 2:
        return free[0][1] if free else None
    if request.affinity:
        return _preferred(free, share(total, len(free)), request.affinity, last)
    turn %= len(free)
    return min(free[turn:] + free[:turn], key=itemgetter(0))[1]


def _preferred(
    free: list[tuple[int, RoutableReplica]], bound: int, affinity: str, last: str
) -> RoutableReplica:
    key = zlib.crc32(affinity.encode(errors="surrogatepass"))
    best, best_score = free[0][1], -1
    for load, replica in free:
        is_known = replica.name == last or affinity in replica.digest
        if load >= (bound + LOYALTY if is_known else bound):
            continue
        score = ((key ^ replica.seed) * 0x9E3779B97F4A7C15) & _MASK
        score = ((score ^ (score >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
        score ^= score >> 32
        if is_known:
            score += _KNOWN if replica.name != last else 2 * _KNOWN
        if score > best_score:
            best, best_score = replica, score
    return best


def _otherwise(
    table: RoutingTable, entry: ModelEntry, request: RoutingRequest, loads: _NodeLoads, turn: int
) -> RoutingDecision:
    """The decision when no node can take the request as it is."""
    if request.wire in TRANSLATABLE_WIRES:
        replica = _pick(entry.translating(request.wire), request, loads, turn)
        if replica is not None:
            return replica.translated
    if request.is_alone:
        return NoRoute(_why_not(table, entry, request, loads))
    if not entry.is_live:
        waiting = _waiting(table, entry, loads)
        if waiting is not None:
            return waiting
    fallback = _fallback(table, entry, request, loads, turn)
    return fallback or NoRoute(_why_not(table, entry, request, loads), _full(entry, request, loads))


def _waiting(table: RoutingTable, entry: ModelEntry, loads: _NodeLoads) -> RoutingDecision | None:
    """The decision for a model that no node has loaded: wait, load it, or go on; None for the last."""
    ids = [replica.id for _, replica in entry.found] if entry.model is None else [entry.model.id]
    for model_id in ids:
        if model_id in loads.loading:
            return ColdModel(model_id)  # later requests wait with the others
    if entry.is_anywhere("recovering"):
        return NoRoute(_recovering(entry))
    if entry.is_anywhere("loading", "downloading"):
        return NoRoute(ModelLoading(f"The model {entry.name!r} is still loading.", param="model"))
    return _loadable(table, entry, loads)


def _loadable(table: RoutingTable, entry: ModelEntry, loads: _NodeLoads) -> ColdModel | None:
    """The model to load; None where no node could take it."""
    if entry.model is None:
        # Outside the catalogue it is enough that a node lists the model.
        could = (
            replica.id for index, replica in entry.found if index.view.takes_work and index.view.spec.is_ours
        )
        replica_id = next(could, None)
        return ColdModel(replica_id) if replica_id is not None else None
    if not entry.model.loadable or loads.is_unloadable(entry.model.id):
        return None
    placement = table.placement(entry.model)
    is_hopeless = isinstance(placement, Infeasible) and not placement.is_passing
    return None if is_hopeless else ColdModel(entry.model.id)


def _fallback(
    table: RoutingTable, entry: ModelEntry, request: RoutingRequest, loads: _NodeLoads, turn: int
) -> ChosenNode | TranslatedNode | ColdModel | None:
    """The first of its fallbacks that can answer now, else the first that can be loaded."""
    cold: ColdModel | None = None
    for name in entry.model.fallbacks if entry.model is not None else ():
        instead = RoutingRequest(
            name,
            request.wire,
            request.affinity,
            request.tried,
            tenant=request.tenant,
            has_images=request.has_images,
        )
        match route(table, instead, loads, turn):
            case ChosenNode() | TranslatedNode() as decision:
                return decision
            case ColdModel() as decision:
                cold = cold or decision
            case NoRoute():
                pass
    return cold


def _why_not(
    table: RoutingTable, entry: ModelEntry, request: RoutingRequest, loads: _NodeLoads
) -> GanglionError:
    if entry.is_live:
        return _why_not_live(entry, request, loads)
    if entry.model is not None and entry.model.loadable:
        placement = table.placement(entry.model)
        if isinstance(placement, Infeasible) and placement.lacks_memory:
            return placement_error(entry.name, placement)
    away = [index.view for index, replica in entry.found if not index.view.takes_work]
    for view in away:
        if view.is_healthy:
            return ShuttingDown(f"The node {view.name}, which holds {entry.name!r}, is draining.")
    if away:
        name = away[0].name
        return ModelUnavailable(_unreached(entry, name), param="model", extras={"node": name})
    if entry.model is None:
        return _unknown(request)
    return ModelUnavailable(
        f"No node holds the model {entry.name!r} just now, or can load it.", param="model"
    )


def _candidates(entry: ModelEntry, wire: Wire, *, has_images: bool = False) -> tuple[RoutableReplica, ...]:
    """Every replica that could answer the call, on nodes that take work."""
    every = (*entry.ready(wire), *(entry.translating(wire) if wire in TRANSLATABLE_WIRES else ()))
    return tuple(replica for replica in every if replica.sees) if has_images else every


def _full(entry: ModelEntry, request: RoutingRequest, loads: _NodeLoads) -> frozenset[str]:
    """Nodes that could take the request, were they not at their `max_in_flight`."""
    return frozenset(
        replica.name
        for replica in _candidates(entry, request.wire, has_images=request.has_images)
        if replica.cap is not None
        and loads.in_flight.get(replica.name, 0) >= replica.cap
        and not replica.is_full
        and replica.name not in request.tried
        and not loads.is_cooling(replica.name)
    )


def _why_not_live(entry: ModelEntry, request: RoutingRequest, loads: _NodeLoads) -> GanglionError:
    replicas = _candidates(entry, request.wire)
    if not replicas:
        return WireUnsupported(
            f"No server that holds {entry.name!r} answers calls of this kind ({request.wire}).",
            param="model",
            extras={"wire": request.wire},
        )
    if request.has_images:
        replicas = tuple(replica for replica in replicas if replica.sees)
        if not replicas:
            return VisionUnsupported(
                f"No server that holds {entry.name!r} is known to read images, and the request has one.",
                extras={"model": entry.name, "suggestion": "send text only"},
            )
    left = [
        replica
        for replica in replicas
        if replica.name not in request.tried and not loads.is_cooling(replica.name)
    ]
    if left:
        return Overloaded(
            f"Every node that holds {entry.name!r} is at its limit of requests.",
            param="model",
            extras={"queue_depth": sum(loads.in_flight.get(replica.name, 0) for replica in left)},
        )
    if entry.is_anywhere("recovering"):
        return _recovering(entry)
    name = replicas[0].name
    return UpstreamUnavailable(_unreached(entry, name), param="model", extras={"node": name})


def _recovering(entry: ModelEntry) -> ModelRecovering:
    return ModelRecovering(f"The model {entry.name!r} is being started again.", param="model")


def _unreached(entry: ModelEntry, node: str) -> str:
    return f"The node {node}, which holds {entry.name!r}, cannot be reached, and no other holds it."


def _unknown(request: RoutingRequest) -> ModelNotFound:
    return ModelNotFound(shortened(request.model), hint="GET /v1/models lists what there is.")
