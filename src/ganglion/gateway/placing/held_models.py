"""Matches replicas on nodes with models of the catalogue.

A node lists a model under a name of its own: a file's, where the catalogue gave it a hub id. So besides
the names that the catalogue gives, the name counts that a node answered a load with.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from ganglion.core.engine import ModelState, Status
from ganglion.gateway.node import NodeView, Replica
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.registry.naming.names import fold

_BEST_FIRST: Final[tuple[Status, ...]] = (
    "loaded",
    "recovering",
    "loading",
    "downloading",
    "draining",
    "unloaded",
    "failed",
)


_ListedAs = Callable[[NodeView, Replica], str]
"""What clients call a node's replica: the catalogue's id where it has one, else the node's."""


def merge_models(
    nodes: Iterable[NodeView],
    catalogue: Iterable[ModelState] = (),
    listed_as: _ListedAs = lambda view, replica: replica.id,
) -> tuple[ModelState, ...]:
    """One state for each model over all nodes that take work, in the order of their ids.

    A model of the catalogue that a node reports is listed under the catalogue's names, the node's own among
    them; what no node reports is added as the catalogue has it.
    """
    found: dict[str, list[tuple[NodeView, Replica]]] = {}
    for view in nodes:
        if view.takes_work:
            for replica in view.replicas:
                found.setdefault(listed_as(view, replica), []).append((view, replica))
    listed = {model: _merged_state(model, replicas) for model, replicas in found.items()}
    for model in catalogue:
        held = listed.get(model.id)
        listed[model.id] = model if held is None else _also_called(held, model.aliases)
    return tuple(sorted(listed.values(), key=_id))


def _also_called(model: ModelState, names: Iterable[str]) -> ModelState:
    known = {fold(name): name for name in (*model.aliases, *names)}
    known.pop(fold(model.id), None)
    return replace(model, aliases=tuple(known.values()))


def _id(model: ModelState) -> str:
    return model.id


def _merged_state(model: str, held: list[tuple[NodeView, Replica]]) -> ModelState:
    status = min((replica.status for _, replica in held), key=_BEST_FIRST.index)
    best = [(view, replica) for view, replica in held if replica.status == status]
    first = best[0][1]
    contexts = [replica.context_length for _, replica in best if replica.context_length]
    return ModelState(
        id=model,
        engine=first.engine or best[0][0].spec.kind,
        status=status,
        # A prompt may go to any of them.
        context_length=min(contexts, default=0),
        created_s=max(replica.created_s for _, replica in held),
        aliases=tuple(
            dict.fromkeys(
                name for _, replica in held for name in (replica.id, *replica.aliases) if name != model
            )
        ),
        capabilities=tuple(dict.fromkeys(each for _, replica in best for each in replica.capabilities)),
        memory_mb=sum(replica.memory_mb for _, replica in held),
        in_flight=sum(replica.in_flight for _, replica in held),
        queued=sum(replica.queued for _, replica in held),
        slots_total=sum(replica.slots_total for _, replica in best),
        error=first.error,
        is_pinned=any(replica.is_pinned for _, replica in held),
        priority=min(replica.priority for _, replica in held),
        last_used_s=max((replica.last_used_s for _, replica in held if replica.last_used_s), default=None),
        devices=tuple(dict.fromkeys(device for _, replica in best for device in replica.devices)),
        sampling=first.sampling,
        source="on " + ", ".join(view.name for view, _ in best),
    )


_RANK = {"loaded": 0, "recovering": 1, "loading": 2, "downloading": 2}


LearnedNames = Mapping[tuple[str, str], str]
"""What nodes called the models that they were asked to load: the catalogue's id, by node and its own id."""
NOTHING_LEARNED: Final[LearnedNames] = MappingProxyType({})


def _is_replica(view: NodeView, replica: Replica, model: CatalogueModel, learned: LearnedNames) -> bool:
    """Whether a node's replica is this model of the catalogue."""
    if learned.get((view.name, replica.id)) == model.id:
        return True
    names = model.listed_as
    return fold(replica.id) in names or any(fold(alias) in names for alias in replica.aliases)


def replica_of(view: NodeView, model: CatalogueModel, learned: LearnedNames) -> Replica | None:
    """The model as a node lists it, the readiest where it does twice; None where it does not."""
    found = (each for each in view.replicas if _is_replica(view, each, model, learned))
    return min(found, key=lambda replica: _RANK.get(replica.status, 3), default=None)


def model_of(
    view: NodeView, replica: Replica, catalogue: FleetCatalogue, learned: LearnedNames
) -> CatalogueModel | None:
    """The catalogue's model of a node's replica; None where it has none."""
    known = learned.get((view.name, replica.id))
    if known is not None and known in catalogue.by_id:
        return catalogue.by_id[known]
    for name in (replica.id, *replica.aliases):
        owners = catalogue.by_listing.get(fold(name))
        if owners:
            return owners[0]
    return None
