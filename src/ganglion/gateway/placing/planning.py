"""Plans where every model of the catalogue would be loaded. Pure.

The most urgent models choose first, and what they take is not there for the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ganglion.gateway.node import DeviceMemory, NodeView, Replica
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.held_models import NOTHING_LEARNED, LearnedNames, replica_of
from ganglion.gateway.placing.placement import HOLDS, Infeasible, Placement, PlacementContext, place, required


@dataclass(frozen=True, slots=True)
class AlreadyHeld:
    """A node has it already."""

    node: str
    status: str


PlanStep = AlreadyHeld | Placement | Infeasible


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """One model: the nodes that hold it, those that would load it, and why one could not."""

    model: CatalogueModel
    required_mb: int
    steps: tuple[PlanStep, ...]

    @property
    def is_feasible(self) -> bool:
        """Whether every replica has a node."""
        return not any(isinstance(step, Infeasible) for step in self.steps)


def plan_placements(
    catalogue: FleetCatalogue, nodes: Mapping[str, NodeView], learned: LearnedNames = NOTHING_LEARNED
) -> tuple[PlannedModel, ...]:
    """A placement for each pinned replica and for `min_replicas`, at least one."""
    planned: list[PlannedModel] = []
    for model in sorted(catalogue.models, key=lambda model: model.priority):
        if not model.loadable:
            continue
        steps: list[PlanStep] = list(_held(model, nodes, learned))
        required_mb = required(model, nodes.values(), learned)
        at = PlacementContext(catalogue, learned)
        holding = {step.node for step in steps if isinstance(step, AlreadyHeld)}
        targets: list[tuple[str, ...] | None] = [(name,) for name in model.pinned_on if name not in holding]
        missing = max(1, model.min_replicas) - len(holding) - len(targets)
        targets += [None] * max(0, missing)
        for only in targets:
            step = place(model, nodes, at, only=only)
            if only and only[0] not in nodes:
                step = Infeasible({only[0]: "there is no such node"}, required_mb, 0, False, False)
            steps.append(step)
            if isinstance(step, Placement):
                nodes = _after(nodes, model, step, required_mb)
        planned.append(PlannedModel(model, required_mb, tuple(steps)))
    return tuple(planned)


def _held(model: CatalogueModel, nodes: Mapping[str, NodeView], learned: LearnedNames) -> list[AlreadyHeld]:
    found = ((view, replica_of(view, model, learned)) for view in nodes.values() if view.takes_work)
    return [
        AlreadyHeld(view.name, replica.status)
        for view, replica in found
        if replica is not None and replica.status in HOLDS
    ]


def _after(
    nodes: Mapping[str, NodeView], model: CatalogueModel, step: Placement, required_mb: int
) -> Mapping[str, NodeView]:
    """The fleet once that was done; what was placed counts as pinned, since it was more urgent."""
    view = nodes[step.node]
    freed_mb = sum(replica.memory_mb for replica in view.replicas if replica.id in step.evictions)
    taken_mb = (required_mb - freed_mb) // max(1, len(step.devices))
    devices = tuple(
        _less(device, taken_mb) if device.index in step.devices else device for device in view.devices
    )
    kept = tuple(
        replica
        for replica in view.replicas
        if replica.id not in step.evictions
        and replica_of(replace(view, replicas=(replica,)), model, {}) is None
    )
    placed = Replica(model.id, "loaded", memory_mb=required_mb, is_pinned=True)
    return {**nodes, step.node: replace(view, replicas=(*kept, placed), devices=devices)}


def _less(device: DeviceMemory, taken_mb: int) -> DeviceMemory:
    return replace(device, free_mb=max(0, device.free_mb - taken_mb))
