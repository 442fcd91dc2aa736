"""How many nodes should hold each model of the catalogue. Pure.

Law: between two changes for one model lies a rest, and pressure or idleness must have lasted: a burst
moves nothing, and what was just loaded is not let go. Nobody is evicted for an extra replica.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ganglion.gateway.catalogue import Catalogue, CatalogueModel
from ganglion.gateway.holdings import LearnedNames, held_by
from ganglion.gateway.node import NodeView, Replica
from ganglion.gateway.placement import HOLDS, Circumstances, Placement, place

PRESSED_S: Final = 10.0
"""How long requests must have been waiting before another replica is worth its load."""
REST_S: Final = 30.0
"""From one change for a model to the next: its effect must show first."""


@dataclass(frozen=True, slots=True)
class Grow:
    """Have one more node hold a model."""

    model: str
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Shrink:
    """Have a node let a model go."""

    model: str
    node: str
    why: str


Action = Grow | Shrink


@dataclass(frozen=True, slots=True)
class Idle:
    """A replica that has nothing to do."""

    since_s: float
    last_used_s: float | None
    """By the node's clock; another one means that it had work between two looks."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of one model until now."""

    pressed_since_s: float | None = None
    idle_since_s: Mapping[str, "Idle"] = field(default_factory=dict)
    """By node."""
    acted_s: float | None = None


Memory = Mapping[str, Observed]
"""By model; handed from one look to the next."""


@dataclass(frozen=True, slots=True)
class _Held:
    view: NodeView
    replica: Replica


def scale(
    nodes: Mapping[str, NodeView],
    catalogue: Catalogue,
    learned: LearnedNames,
    memory: Memory,
    now_s: float,
) -> tuple[tuple[Action, ...], Memory]:
    """What to do now, at most one thing for each model, and what to remember until the next look."""
    actions: list[Action] = []
    remembered: dict[str, Observed] = {}
    for model in catalogue.models:
        held = tuple(_holders(model, nodes, learned))
        seen = _observed(model, held, memory.get(model.id, Observed()), now_s)
        action: Action | None = None
        if model.loadable and (seen.acted_s is None or now_s - seen.acted_s >= REST_S):
            at = Circumstances(catalogue, learned)
            action = (
                _wanting(model, held, nodes, at)
                or _pressed(model, held, nodes, at, _since(seen.pressed_since_s, now_s))
                or _idle(model, held, seen, now_s)
            )
        if action is not None:
            actions.append(action)
            seen = Observed(None, seen.idle_since_s, now_s)
        remembered[model.id] = seen
    return tuple(actions), remembered


def _holders(model: CatalogueModel, nodes: Mapping[str, NodeView], learned: LearnedNames) -> Iterator[_Held]:
    for view in nodes.values():
        replica = held_by(view, model, learned)
        if view.takes_work and replica is not None and replica.status in HOLDS:
            yield _Held(view, replica)


def _observed(model: CatalogueModel, held: tuple[_Held, ...], before: Observed, now_s: float) -> Observed:
    queued = sum(each.replica.queued for each in held)
    is_pressed = bool(held) and queued > model.scale_up_queue * len(held)
    pressed_since_s = before.pressed_since_s if before.pressed_since_s is not None else now_s
    return Observed(
        pressed_since_s if is_pressed else None,
        {
            each.view.name: _idle_since(each, before.idle_since_s.get(each.view.name), now_s)
            for each in held
            if _is_idle(each.replica)
        },
        before.acted_s,
    )


def _idle_since(held: _Held, before: Idle | None, now_s: float) -> Idle:
    last_used_s = held.replica.last_used_s
    return before if before is not None and before.last_used_s == last_used_s else Idle(now_s, last_used_s)


def _since(moment_s: float | None, now_s: float) -> float:
    return 0.0 if moment_s is None else now_s - moment_s


def _is_idle(replica: Replica) -> bool:
    return replica.status == "loaded" and not replica.in_flight and not replica.queued


def _wanting(
    model: CatalogueModel, held: tuple[_Held, ...], nodes: Mapping[str, NodeView], at: Circumstances
) -> Grow | None:
    """A node that should hold it always, whoever must leave."""
    holding = {each.view.name for each in held}
    missing = [name for name in model.pinned_on if name in nodes and name not in holding]
    if missing:
        placement = place(model, nodes, at, only=missing)
        if isinstance(placement, Placement):
            return Grow(model.id, placement.node, f"pinned there: {placement.why}")
    if len(held) < model.min_replicas:
        placement = place(model, nodes, at)
        if isinstance(placement, Placement):
            why = f"{len(held)} of at least {model.min_replicas} replicas: {placement.why}"
            return Grow(model.id, placement.node, why)
    return None


def _pressed(
    model: CatalogueModel,
    held: tuple[_Held, ...],
    nodes: Mapping[str, NodeView],
    at: Circumstances,
    waited_s: float,
) -> Grow | None:
    """One more where requests have been waiting for long, if there is room as it is."""
    if waited_s < PRESSED_S or len(held) >= model.most_replicas:
        return None
    if any(each.replica.status != "loaded" for each in held):
        return None  # help is on its way
    placement = place(model, nodes, Circumstances(at.catalogue, at.learned, may_evict=False))
    if not isinstance(placement, Placement):
        return None
    queued = sum(each.replica.queued for each in held)
    why = f"{queued} waited on {len(held)} for {waited_s:.0f} s: {placement.why}"
    return Grow(model.id, placement.node, why)


def _idle(model: CatalogueModel, held: tuple[_Held, ...], seen: Observed, now_s: float) -> Shrink | None:
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
    return Shrink(model.id, name, f"idle for {now_s - since_s:.0f} s")
