"""Chooses the node that a model is loaded on, and what is evicted for it. Pure.

Law: only idle models leave, none that is pinned, more urgent, or one of the fewest that the catalogue asks
for; the least recently used go first, and no more than are needed.

A model whose memory is unknown fits wherever anything is free; the node has the last word.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from ganglion.core.errors import GanglionError, InsufficientMemory, InsufficientVideoMemory, ModelUnavailable
from ganglion.gateway.node import DeviceMemory, NodeView, Replica
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.held_models import NOTHING_LEARNED, LearnedNames, model_of, replica_of

HOLDS = frozenset(("loaded", "loading", "downloading", "recovering"))
"""A node whose replica is in one of these needs no load of it."""
_COMING = frozenset(("loading", "downloading"))
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Placement:
    """The node and devices for a model, and what is evicted first."""

    node: str
    evictions: tuple[str, ...]
    """The node's own names of what is unloaded first."""
    devices: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No node can load a model; why, node by node."""

    reasons: Mapping[str, str]
    required_mb: int
    free_mb: int
    """Of the node that has the most."""
    is_passing: bool
    """Whether it would fit once what is busy now, or on its way, becomes idle."""
    lacks_memory: bool
    """Whether any node was looked at for its memory; no node could be asked otherwise."""
    is_video: bool = False
    """Whether it is an accelerator's memory that one of them lacks."""

    @property
    def words(self) -> str:
        """The reasons in one sentence."""
        reasons = [f"{node}: {reason}" for node, reason in self.reasons.items()]
        more = f"; and {len(reasons) - _SHOWN} more nodes" if len(reasons) > _SHOWN else ""
        return "; ".join(reasons[:_SHOWN]) + more if reasons else "there is no node"


@dataclass(frozen=True, slots=True)
class PlacementContext:
    """What else a placement depends on."""

    catalogue: FleetCatalogue = FleetCatalogue()
    learned: LearnedNames = field(default_factory=dict)
    reserved_mb: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By node and device: memory of loads that are under way and not listed yet."""
    busy: frozenset[tuple[str, str]] = frozenset()
    """Node and replica: known to be busy, whatever the view says."""
    may_evict: bool = True


@dataclass(frozen=True, slots=True)
class _Fit:
    view: NodeView
    evictions: tuple[Replica, ...]
    devices: tuple[int, ...]
    free_mb: int


@dataclass(frozen=True, slots=True)
class _Misfit:
    reason: str
    free_mb: int = 0
    is_passing: bool = False
    is_judged: bool = False


def place(
    model: CatalogueModel,
    nodes: Mapping[str, NodeView],
    at: PlacementContext,
    *,
    only: Iterable[str] | None = None,
    excluded: Iterable[str] = (),
) -> Placement | Infeasible:
    """The best node for one more replica: a pinned one, one where it fits, one where others must leave.

    Among equals the one with the most free memory, then the fewest models, then the first by name.
    """
    required_mb = required(model, nodes.values(), at.learned)
    meant = nodes if only is None else {name: nodes[name] for name in only if name in nodes}
    left_out = frozenset(excluded)
    outcomes = {
        name: _Misfit("it was tried") if name in left_out else _judge(model, view, nodes, required_mb, at)
        for name, view in meant.items()
    }
    fits = [outcome for outcome in outcomes.values() if isinstance(outcome, _Fit)]
    if fits:
        best = min(fits, key=lambda fit: _rank(fit, model))
        return Placement(
            best.view.name,
            tuple(replica.id for replica in best.evictions),
            best.devices,
            _why(best, model, required_mb),
        )
    misfits = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, _Misfit)}
    return Infeasible(
        {name: outcome.reason for name, outcome in misfits.items()},
        required_mb,
        max((outcome.free_mb for outcome in misfits.values()), default=0),
        any(outcome.is_passing for outcome in misfits.values()),
        any(outcome.is_judged for outcome in misfits.values()),
        any(
            outcome.is_judged and any(device.index >= 0 for device in nodes[name].devices)
            for name, outcome in misfits.items()
        ),
    )


def required(model: CatalogueModel, nodes: Iterable[NodeView], learned: LearnedNames) -> int:
    """What the catalogue says it takes on all devices, else the most that any node reports, else 0."""
    layout = model.layout
    if model.device_mb:
        return model.device_mb * layout.ranks
    if model.memory_mb:
        return model.memory_mb * (layout.data_parallel or 1)
    replicas = (replica_of(view, model, learned) for view in nodes)
    return max((replica.memory_mb for replica in replicas if replica is not None), default=0)


def _judge(
    model: CatalogueModel,
    view: NodeView,
    nodes: Mapping[str, NodeView],
    required_mb: int,
    at: PlacementContext,
) -> _Fit | _Misfit:
    unable = _unable(model, view, at)
    if unable is not None:
        return _Misfit(unable)
    room = _room(view, at)
    free_mb = sum(room.values())
    devices = _fitting(model, room, required_mb)
    if devices is not None:
        return _Fit(view, (), devices, free_mb)
    idle, busy = _victims(model, view, nodes, at)
    for count in range(1, len(idle) + 1 if at.may_evict else 1):
        devices = _fitting(model, _after(room, view, idle[:count]), required_mb)
        if devices is not None:
            needed = _needed(idle[:count], view, model, room, required_mb)
            devices = _fitting(model, _after(room, view, needed), required_mb)
            return _Fit(view, tuple(needed), devices or (), free_mb)
    later = _after(_untouched(view), view, [*idle, *busy])
    is_passing = at.may_evict and _fitting(model, later, required_mb) is not None
    reason = _too_little(model, room, idle, busy, required_mb)
    return _Misfit(reason, free_mb, is_passing, is_judged=True)


def _unable(model: CatalogueModel, view: NodeView, at: PlacementContext) -> str | None:
    if not view.spec.is_ours:
        return "a foreign server loads nothing when asked"
    if not view.is_healthy:
        return "it is not healthy"
    if view.is_draining:
        return "it is draining"
    replica = replica_of(view, model, at.learned)
    if replica is not None and replica.status in HOLDS:
        return f"it has it already ({replica.status})"
    if model.is_clustered and view.name not in model.pinned_on:
        return "it is not one of the nodes that have its Ray cluster (pinned_on)"
    return _undividing(model, view)


def _undividing(model: CatalogueModel, view: NodeView) -> str | None:
    """Why no engine of a node lays a model over devices as it must be; a node that says nothing is tried."""
    demands = frozenset(model.layout.demands)
    engines = {name: fields for name, fields in view.engines.items() if model.engine in (None, name)}
    if not demands or not view.engines or any(demands <= fields for fields in engines.values()):
        return None
    which = f"its engines ({', '.join(view.engines)})" if model.engine is None else f"its {model.engine!r}"
    return f"none of {which} supports {', '.join(model.layout.demands)}"


def _room(view: NodeView, at: PlacementContext) -> dict[int, int]:
    """Free memory by device, less what is on its way there."""
    room = _untouched(view)
    for replica in view.replicas:
        if replica.status in _COMING:
            _add(room, view.devices, replica, -1)
    return {index: free_mb - at.reserved_mb.get((view.name, index), 0) for index, free_mb in room.items()}


def _untouched(view: NodeView) -> dict[int, int]:
    return {device.index: device.free_mb for device in view.devices}


def _after(room: Mapping[int, int], view: NodeView, leaving: Sequence[Replica]) -> dict[int, int]:
    after = dict(room)
    for replica in leaving:
        _add(after, view.devices, replica, 1)
    return after


def _add(room: dict[int, int], devices: Sequence[DeviceMemory], replica: Replica, sign: int) -> None:
    """What a replica takes, spread over the devices that it names, or over all where it names none."""
    named = [device.index for device in devices if _is_on(replica, device)]
    indices = named or [device.index for device in devices]
    for index in indices:
        room[index] += sign * (replica.memory_mb // len(indices))


def _is_on(replica: Replica, device: DeviceMemory) -> bool:
    names = (str(device.index), f"cuda:{device.index}", f"gpu:{device.index}", device.name or "\0")
    return any(name in names for name in replica.devices)


def _fitting(model: CatalogueModel, room: Mapping[int, int], required_mb: int) -> tuple[int, ...] | None:
    """The devices that it would be put on, as few as possible; None where it does not fit."""
    if model.is_clustered:
        return ()  # its devices are the cluster's, which the node does not list
    spare = {index: free_mb - model.min_free_mb for index, free_mb in room.items()}
    order = sorted((index for index in spare if spare[index] > 0), key=lambda index: (-spare[index], index))
    if model.layout.demands:
        part_mb = _part_mb(model, required_mb)
        able = [index for index in order if index >= 0 and spare[index] >= part_mb]
        return tuple(able[: model.layout.ranks]) if len(able) >= model.layout.ranks else None
    if required_mb == 0 and not room:
        return ()
    for count, together_mb in enumerate(accumulate(spare[index] for index in order[: model.devices]), 1):
        if together_mb >= required_mb:
            return tuple(order[:count])
    return None


def _part_mb(model: CatalogueModel, required_mb: int) -> int:
    """What each device takes of a model that is divided into equal parts."""
    return -(-required_mb // model.layout.ranks)


def _victims(
    model: CatalogueModel, view: NodeView, nodes: Mapping[str, NodeView], at: PlacementContext
) -> tuple[list[Replica], list[Replica]]:
    """Who may leave, the least recently used first, and who might if they were not busy."""
    idle: list[Replica] = []
    busy: list[Replica] = []
    for replica in view.replicas:
        if replica.status != "loaded" or replica.is_pinned:
            continue
        known = model_of(view, replica, at.catalogue, at.learned)
        if (known.priority if known else replica.priority) < model.priority:
            continue
        if known and (view.name in known.pinned_on or not _is_spare(known, nodes, at)):
            continue
        is_busy = replica.in_flight or replica.queued or (view.name, replica.id) in at.busy
        (busy if is_busy else idle).append(replica)
    idle.sort(key=lambda replica: (replica.last_used_s or 0.0, replica.id))
    return idle, busy


def _is_spare(known: CatalogueModel, nodes: Mapping[str, NodeView], at: PlacementContext) -> bool:
    if not known.min_replicas:
        return True
    held = (replica_of(view, known, at.learned) for view in nodes.values() if view.takes_work)
    return sum(replica is not None and replica.status == "loaded" for replica in held) > known.min_replicas


def _needed(
    leaving: Sequence[Replica],
    view: NodeView,
    model: CatalogueModel,
    room: Mapping[int, int],
    required_mb: int,
) -> list[Replica]:
    """Of those that would leave, the ones without which it does not fit."""
    needed = list(leaving)
    for replica in reversed(leaving):
        others = [each for each in needed if each is not replica]
        if _fitting(model, _after(room, view, others), required_mb) is not None:
            needed = others
    return needed


def _rank(fit: _Fit, model: CatalogueModel) -> tuple[bool, bool, int, int, str]:
    held = sum(replica.status in HOLDS for replica in fit.view.replicas)
    is_pinned = fit.view.name in model.pinned_on
    return not is_pinned, bool(fit.evictions), -fit.free_mb, held, fit.view.name


def _why(fit: _Fit, model: CatalogueModel, required_mb: int) -> str:
    pinned = "pinned there; " if fit.view.name in model.pinned_on else ""
    split = f" over {len(fit.devices)} devices" if len(fit.devices) > 1 else ""
    needs = f"needs {required_mb:,} MB" if required_mb else "needs an unknown amount"
    after = f" after evicting {', '.join(each.id for each in fit.evictions)}" if fit.evictions else ""
    return f"{pinned}{needs}, {fit.free_mb:,} free{split}{after}"


def _too_little(
    model: CatalogueModel,
    room: Mapping[int, int],
    idle: Sequence[Replica],
    busy: Sequence[Replica],
    required_mb: int,
) -> str:
    if not room:
        return "it does not say how much memory it has"
    kept = f" and {model.min_free_mb:,} kept free" if model.min_free_mb else ""
    needs = f"needs {required_mb:,} MB" if required_mb else "needs an unknown amount"
    if model.layout.demands:
        return _too_few(model, room, f"{_part_mb(model, required_mb):,} MB{kept}" if required_mb else "room")
    words = f"{needs}{kept}, {max(room.values()):,} free"
    if len(room) > 1:
        words += f" on one device, {sum(room.values()):,} on {len(room)}, may use {model.devices}"
    for replicas, which in ((idle, "by evicting"), (busy, "held by the busy")):
        more_mb = sum(replica.memory_mb for replica in replicas)
        if more_mb:
            words += f", {more_mb:,} more {which} {', '.join(replica.id for replica in replicas)}"
    return words


def _too_few(model: CatalogueModel, room: Mapping[int, int], part: str) -> str:
    """Which devices a model lacks that is divided into equal parts."""
    cards = sorted((free_mb for index, free_mb in room.items() if index >= 0), reverse=True)
    free = f": {', '.join(f'{free_mb:,}' for free_mb in cards)} free" if cards else ""
    return f"needs {part} on each of {model.layout.ranks} devices, has {len(cards)}{free}"


def placement_error(name: str, outcome: Infeasible) -> GanglionError:
    """The error for a model that no node can load."""
    if not outcome.lacks_memory:
        return ModelUnavailable(f"No node can load {name!r}: {outcome.words}.", param="model")
    kind = InsufficientVideoMemory if outcome.is_video else InsufficientMemory
    return kind(
        f"The model {name!r} fits on no node: {outcome.words}.",
        free_mb=outcome.free_mb,
        required_mb=outcome.required_mb,
        hint="ganglion fleet plan shows what goes where.",
    )


# The most urgent models choose first, and what they take is not there for the others.


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
                nodes = _after_placing(nodes, model, step, required_mb)
        planned.append(PlannedModel(model, required_mb, tuple(steps)))
    return tuple(planned)


def _held(model: CatalogueModel, nodes: Mapping[str, NodeView], learned: LearnedNames) -> list[AlreadyHeld]:
    found = ((view, replica_of(view, model, learned)) for view in nodes.values() if view.takes_work)
    return [
        AlreadyHeld(view.name, replica.status)
        for view, replica in found
        if replica is not None and replica.status in HOLDS
    ]


def _after_placing(
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
