"""Which model of the catalogue a node's replica is.

A node lists a model under a name of its own: a file's, where the catalogue gave it a hub id. So besides
the names that the catalogue gives, the name counts that a node answered a load with.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ganglion.gateway.catalogue import Catalogue, CatalogueModel
from ganglion.gateway.node import NodeView, Replica
from ganglion.registry.names import fold

_RANK = {"loaded": 0, "recovering": 1, "loading": 2, "downloading": 2}


LearnedNames = Mapping[tuple[str, str], str]
"""What nodes called the models that they were asked to load: the catalogue's id, by node and its own id."""
NOTHING_LEARNED: Final[LearnedNames] = MappingProxyType({})


def is_replica(view: NodeView, replica: Replica, model: CatalogueModel, learned: LearnedNames) -> bool:
    """Whether this is that model."""
    if learned.get((view.name, replica.id)) == model.id:
        return True
    names = model.listed_as
    return fold(replica.id) in names or any(fold(alias) in names for alias in replica.aliases)


def held_by(view: NodeView, model: CatalogueModel, learned: LearnedNames) -> Replica | None:
    """The model as a node lists it, the readiest where it does twice; None where it does not."""
    found = (each for each in view.replicas if is_replica(view, each, model, learned))
    return min(found, key=lambda replica: _RANK.get(replica.status, 3), default=None)


def model_of(
    view: NodeView, replica: Replica, catalogue: Catalogue, learned: LearnedNames
) -> CatalogueModel | None:
    """What the catalogue says of a node's replica."""
    known = learned.get((view.name, replica.id))
    if known is not None and known in catalogue.by_id:
        return catalogue.by_id[known]
    for name in (replica.id, *replica.aliases):
        owners = catalogue.by_listing.get(fold(name))
        if owners:
            return owners[0]
    return None
