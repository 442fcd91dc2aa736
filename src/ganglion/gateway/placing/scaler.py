"""Scales models: decides how many replicas each needs, and has them loaded and unloaded."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from ganglion.core.errors import GanglionError
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView, Replica
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.held_models import LearnedNames, replica_of
from ganglion.gateway.placing.placement import HOLDS, Placement, PlacementContext, place

# Law: between two changes for one model lies a rest, and pressure or idleness must have lasted: a burst
# moves nothing, and what was just loaded is not let go. Nobody is evicted for an extra replica.

PRESSED_S: Final = 10.0
"""How long requests must have been waiting before another replica is worth its load."""
REST_S: Final = 30.0
"""From one change for a model to the next: its effect must show first."""


@dataclass(frozen=True, slots=True)
class GrowModel:
    """Load a model on one more node."""

    model: str
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class ShrinkModel:
    """Unload a model from a node."""

    model: str
    node: str
    why: str


ScalingAction = GrowModel | ShrinkModel


@dataclass(frozen=True, slots=True)
class _IdleReplica:
    """A replica that has nothing to do."""

    since_s: float
    last_used_s: float | None
    """By the node's clock; another one means that it had work between two looks."""


@dataclass(frozen=True, slots=True)
class _ScalingObservation:
    """What was seen of one model until now."""

    pressed_since_s: float | None = None
    idle_since_s: Mapping[str, "_IdleReplica"] = field(default_factory=dict)
    """By node."""
    acted_s: float | None = None


ScalingMemory = Mapping[str, _ScalingObservation]
"""By model; handed from one look to the next."""


@dataclass(frozen=True, slots=True)
class _HeldReplica:
    view: NodeView
    replica: Replica


def scale(
    nodes: Mapping[str, NodeView],
    catalogue: FleetCatalogue,
    learned: LearnedNames,
    memory: ScalingMemory,
    now_s: float,
) -> tuple[tuple[ScalingAction, ...], ScalingMemory]:
    """What to do now, at most one thing for each model, and what to remember until the next look."""
    actions: list[ScalingAction] = []
    remembered: dict[str, _ScalingObservation] = {}
    for model in catalogue.models:
        held = tuple(_holders(model, nodes, learned))
        seen = _observed(model, held, memory.get(model.id, _ScalingObservation()), now_s)
        action: ScalingAction | None = None
        if model.loadable and (seen.acted_s is None or now_s - seen.acted_s >= REST_S):
            at = PlacementContext(catalogue, learned)
            action = (
                _below_minimum(model, held, nodes, at)
                or _under_pressure(model, held, nodes, at, _since(seen.pressed_since_s, now_s))
                or _idle(model, held, seen, now_s)
            )
        if action is not None:
            actions.append(action)
            seen = _ScalingObservation(None, seen.idle_since_s, now_s)
        remembered[model.id] = seen
    return tuple(actions), remembered


def _holders(
    model: CatalogueModel, nodes: Mapping[str, NodeView], learned: LearnedNames
) -> Iterator[_HeldReplica]:
    for view in nodes.values():
        replica = replica_of(view, model, learned)
        if view.takes_work and replica is not None and replica.status in HOLDS:
            yield _HeldReplica(view, replica)


def _observed(
    model: CatalogueModel, held: tuple[_HeldReplica, ...], before: _ScalingObservation, now_s: float
) -> _ScalingObservation:
    queued = sum(each.replica.queued for each in held)
    is_pressed = bool(held) and queued > model.scale_up_queue * len(held)
    pressed_since_s = before.pressed_since_s if before.pressed_since_s is not None else now_s
    return _ScalingObservation(
        pressed_since_s if is_pressed else None,
        {
            each.view.name: _idle_since(each, before.idle_since_s.get(each.view.name), now_s)
            for each in held
            if _is_idle(each.replica)
        },
        before.acted_s,
    )


def _idle_since(held: _HeldReplica, before: _IdleReplica | None, now_s: float) -> _IdleReplica:
    last_used_s = held.replica.last_used_s
    return (
        before
        if before is not None and before.last_used_s == last_used_s
        else _IdleReplica(now_s, last_used_s)
    )


def _since(moment_s: float | None, now_s: float) -> float:
    return 0.0 if moment_s is None else now_s - moment_s


def _is_idle(replica: Replica) -> bool:
    return replica.status == "loaded" and not replica.in_flight and not replica.queued


def _below_minimum(
    model: CatalogueModel, held: tuple[_HeldReplica, ...], nodes: Mapping[str, NodeView], at: PlacementContext
) -> GrowModel | None:
    """One more replica where a pinned or minimal one is missing, whatever must be evicted."""
    holding = {each.view.name for each in held}
    missing = [name for name in model.pinned_on if name in nodes and name not in holding]
    if missing:
        placement = place(model, nodes, at, only=missing)
        if isinstance(placement, Placement):
            return GrowModel(model.id, placement.node, f"pinned there: {placement.why}")
    if len(held) < model.min_replicas:
        placement = place(model, nodes, at)
        if isinstance(placement, Placement):
            why = f"{len(held)} of at least {model.min_replicas} replicas: {placement.why}"
            return GrowModel(model.id, placement.node, why)
    return None


def _under_pressure(
    model: CatalogueModel,
    held: tuple[_HeldReplica, ...],
    nodes: Mapping[str, NodeView],
    at: PlacementContext,
    waited_s: float,
) -> GrowModel | None:
    """One more where requests have been waiting for long, if there is room as it is."""
    if waited_s < PRESSED_S or len(held) >= model.most_replicas:
        return None
    if any(each.replica.status != "loaded" for each in held):
        return None  # help is on its way
    placement = place(model, nodes, PlacementContext(at.catalogue, at.learned, may_evict=False))
    if not isinstance(placement, Placement):
        return None
    queued = sum(each.replica.queued for each in held)
    why = f"{queued} waited on {len(held)} for {waited_s:.0f} s: {placement.why}"
    return GrowModel(model.id, placement.node, why)


def _idle(
    model: CatalogueModel, held: tuple[_HeldReplica, ...], seen: _ScalingObservation, now_s: float
) -> ShrinkModel | None:
    """One fewer where a replica beyond the fewest has been idle for long, the longest first."""
    loaded = sum(each.replica.status == "loaded" for each in held)
    if model.idle_s is None or loaded <= model.min_replicas:
        return None
    leaving = [
        (idle.since_s, name)
        for name, idle in seen.idle_since_s.items()
        if now_s - idle.since_s >= model.idle_s and name not in model.pinned_on
    ]
    pinned = {each.view.name for each in held if each.replica.is_pinned}
    leaving = [each for each in leaving if each[1] not in pinned]
    if not leaving or seen.pressed_since_s is not None:
        return None
    since_s, name = min(leaving)
    return ShrinkModel(model.id, name, f"idle for {now_s - since_s:.0f} s")


_logger = logging.getLogger("ganglion.gateway")

_PERIOD_S: Final = 1.0


class _ReplicaMover(Protocol):
    """Loads and unloads models on nodes; a FleetLoader is one."""

    async def load_on(self, model: str, node: str) -> None:
        """Load a model on one node."""

    async def unload_from(self, model: str, node: str) -> None:
        """Unload a model from one node."""


class Scaler:
    """A loop over `scale`; for each model at most one change is under way."""

    def __init__(
        self,
        fleet: Fleet,
        catalogue: FleetCatalogue,
        mover: _ReplicaMover,
        *,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = _PERIOD_S,
    ) -> None:
        self.catalogue = catalogue
        """May be replaced by another one at any time."""
        self._fleet = fleet
        self._mover = mover
        self._clock = clock
        self._period_s = period_s
        self._memory: ScalingMemory = {}
        self._changes: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Scale again and again until cancelled; changes that are under way then are not waited for."""
        try:
            while True:
                self.look()
                await asyncio.sleep(self._period_s)
        finally:
            changes = list(self._changes.values())
            for change in changes:
                change.cancel()
            await asyncio.gather(*changes, return_exceptions=True)

    def look(self) -> tuple[ScalingAction, ...]:
        """Decide once, and begin what is to be done."""
        actions, self._memory = scale(
            self._fleet.nodes, self.catalogue, self._fleet.learned, self._memory, self._clock()
        )
        begun = tuple(action for action in actions if action.model not in self._changes)
        for action in begun:
            task = asyncio.create_task(self._act(action), name=f"scale {action.model}")
            self._changes[action.model] = task
            task.add_done_callback(lambda _, model=action.model: self._changes.pop(model))  # type: ignore[misc]
        return begun

    async def _act(self, action: ScalingAction) -> None:
        verb = "is loaded on" if isinstance(action, GrowModel) else "is unloaded from"
        _logger.info("model %s %s node %s: %s", action.model, verb, action.node, action.why)
        try:
            if isinstance(action, GrowModel):
                await self._mover.load_on(action.model, action.node)
            else:
                await self._mover.unload_from(action.model, action.node)
        except GanglionError as error:
            _logger.warning("scaling model %s failed: %s", action.model, error.message)
