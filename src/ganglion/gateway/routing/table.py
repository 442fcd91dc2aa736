"""The nodes that hold each model, by every name that clients may use. Pure.

Built anew whenever the fleet changes; of a node that did not change everything is kept, and a name is looked
up when it is first requested.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from ganglion.gateway.node import NodeView, Replica
from ganglion.gateway.placing.catalogue import CATCH_ALL, CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.held_models import NOTHING_LEARNED, LearnedNames, model_of, replica_of
from ganglion.gateway.placing.placement import Infeasible, Placement, PlacementContext, place
from ganglion.gateway.routing.decision import ChosenNode, TranslatedNode
from ganglion.registry.naming.names import fold
from ganglion.wire.dialect import Wire
from ganglion.wire.dialects import TRANSLATION_WIRE

MAX_REMEMBERED = 4096
"""Names whose entry is kept: clients may use any, and `*` matches them all."""


class _NodeIndex:
    """What one node lists, by name."""

    __slots__ = ("by_alias", "by_id", "load", "seed", "view")

    def __init__(self, view: NodeView) -> None:
        self.view = view
        self.by_id = {replica.id: replica for replica in view.replicas}
        self.by_alias = {fold(alias): replica for replica in view.replicas for alias in replica.aliases}
        self.load = sum(replica.in_flight + replica.queued for replica in view.replicas)
        self.seed = int.from_bytes(blake2b(view.name.encode(), digest_size=8).digest())
        """The node in rendezvous hashing, the same in every process."""


class RoutableReplica:
    """A replica on a node that takes work: what the choice depends on, and the decisions ready made."""

    __slots__ = ("cap", "chosen", "digest", "is_full", "load", "name", "seed", "sees", "translated")

    def __init__(
        self,
        index: _NodeIndex,
        replica: Replica,
        max_in_flight: int | None,
        booked_as: str,
        *,
        sees: bool,
    ) -> None:
        spec = index.view.spec
        self.name = spec.name
        self.cap = spec.max_in_flight
        self.load = index.load
        """As the node reports it: running and waiting there, whoever sent it."""
        self.is_full = max_in_flight is not None and replica.in_flight + replica.queued >= max_in_flight
        self.digest = index.view.digest
        self.seed = index.seed
        self.sees = sees
        context_length = replica.context_length
        self.chosen = ChosenNode(spec, replica.id, booked_as, context_length)
        self.translated = TranslatedNode(spec, replica.id, booked_as, context_length)


def _may_see(view: NodeView, replica: Replica) -> bool:
    """Whether pictures may be passed on; a server that says nothing of its models is left to refuse them."""
    return not replica.capabilities or "vision" in replica.capabilities


def _sees_translated(view: NodeView, replica: Replica) -> bool:
    """Whether pictures may be translated for a server: one that is not ours must be declared to take them."""
    return "vision" in replica.capabilities or (view.spec.is_ours and not replica.capabilities)


@dataclass(slots=True)
class ModelEntry:
    """Everything that is known of a name."""

    name: str
    model: CatalogueModel | None
    """The catalogue's model of that name, where there is one."""
    found: tuple[tuple[_NodeIndex, Replica], ...]
    """Every replica, servable or not."""
    booked_as: tuple[str, ...] = ()
    """What an answer of each of these is booked as."""
    _ready: dict[Wire, tuple[RoutableReplica, ...]] = field(default_factory=dict)
    _translating: dict[Wire, tuple[RoutableReplica, ...]] = field(default_factory=dict)

    def ready(self, wire: Wire) -> tuple[RoutableReplica, ...]:
        """Loaded, on nodes that take work and speak the wire."""
        replicas = self._ready.get(wire)
        if replicas is None:
            replicas = self._ready[wire] = self._routable(lambda wires: wire in wires, _may_see)
        return replicas

    def translating(self, wire: Wire) -> tuple[RoutableReplica, ...]:
        """Loaded, on nodes that take work, speak chat, and lack the wire."""
        replicas = self._translating.get(wire)
        if replicas is None:
            replicas = self._routable(
                lambda wires: TRANSLATION_WIRE in wires and wire not in wires, _sees_translated
            )
            self._translating[wire] = replicas
        return replicas

    @property
    def is_live(self) -> bool:
        """Whether any node that takes work has it loaded."""
        return any(index.view.takes_work and replica.is_servable for index, replica in self.found)

    def is_anywhere(self, *statuses: str) -> bool:
        """Whether a node that takes work has it in one of these states."""
        return any(index.view.takes_work and replica.status in statuses for index, replica in self.found)

    def _routable(
        self, speaks: Callable[[frozenset[Wire]], bool], sees: Callable[[NodeView, Replica], bool]
    ) -> tuple[RoutableReplica, ...]:
        cap = self.model.max_in_flight if self.model is not None else None
        return tuple(
            RoutableReplica(index, replica, cap, booked_as, sees=sees(index.view, replica))
            for (index, replica), booked_as in zip(self.found, self.booked_as, strict=True)
            if replica.is_servable and index.view.takes_work and speaks(index.view.spec.wires)
        )


class RoutingTable:
    """One moment of a fleet and a catalogue."""

    def __init__(
        self,
        nodes: Mapping[str, NodeView],
        catalogue: FleetCatalogue,
        learned: LearnedNames = NOTHING_LEARNED,
        *,
        before: "RoutingTable | None" = None,
    ) -> None:
        known: Mapping[str, _NodeIndex] = before.indices if before is not None else {}
        self.indices: dict[str, _NodeIndex] = {
            name: known[name] if name in known and known[name].view is view else _NodeIndex(view)
            for name, view in nodes.items()
        }
        self._nodes = nodes
        self._catalogue = catalogue
        self._learned = learned
        self._entries: dict[str, ModelEntry] = {}
        self._placements: dict[str, Placement | Infeasible] = {}

    def entry(self, name: str) -> ModelEntry | None:
        """The entry of a name; None where nobody knows it."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._lookup(name)
            if entry is not None and len(self._entries) < MAX_REMEMBERED:
                self._entries[name] = entry
        return entry

    def placement(self, model: CatalogueModel) -> Placement | Infeasible:
        """Where a model would be loaded now."""
        outcome = self._placements.get(model.id)
        if outcome is None:
            at = PlacementContext(self._catalogue, self._learned)
            outcome = self._placements[model.id] = place(model, self._nodes, at)
        return outcome

    def _lookup(self, name: str) -> ModelEntry | None:
        base, colon, tag = name.rpartition(":")
        spellings = (name, base) if colon and base and "/" not in tag else (name,)
        for spelling in spellings:
            entry = self._by_id(spelling) or self._by_alias(spelling)
            if entry is not None:
                return entry
        return self._by_alias(CATCH_ALL)

    def _by_id(self, name: str) -> ModelEntry | None:
        model = self._catalogue.by_id.get(name)
        if model is not None:
            return self._of_model(model)
        found = [(each, each.by_id[name]) for each in self.indices.values() if name in each.by_id]
        return self._listed(name, found)

    def _by_alias(self, name: str) -> ModelEntry | None:
        folded = fold(name)
        model = self._catalogue.by_alias.get(folded)
        if model is not None:
            return self._of_model(model)
        found = [(each, each.by_alias[folded]) for each in self.indices.values() if folded in each.by_alias]
        return self._listed(name, found)

    def _listed(self, name: str, found: list[tuple[_NodeIndex, Replica]]) -> ModelEntry | None:
        """A name that only nodes list; the catalogue may know the model by another one."""
        if not found:
            return None
        booked_as = tuple(self.booked_as(index.view, replica) for index, replica in found)
        return ModelEntry(name, None, tuple(found), booked_as)

    def booked_as(self, view: NodeView, replica: Replica) -> str:
        """What answers of a node's replica are booked as: the catalogue's id for it, else the node's."""
        model = model_of(view, replica, self._catalogue, self._learned)
        return replica.id if model is None else model.id

    def _of_model(self, model: CatalogueModel) -> ModelEntry:
        known = self._entries.get(model.id)
        if known is not None and known.model is model:
            return known
        held = ((each, replica_of(each.view, model, self._learned)) for each in self.indices.values())
        found = tuple((index, replica) for index, replica in held if replica is not None)
        return ModelEntry(model.id, model, found, (model.id,) * len(found))
