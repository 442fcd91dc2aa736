"""The models of a fleet as one list: every name once, as the nodes that hold it say together."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ganglion.core.engine import ModelState, Status
from ganglion.gateway.node import NodeView, Replica
from ganglion.registry.names import fold

_BEST_FIRST: Final[tuple[Status, ...]] = (
    "loaded",
    "recovering",
    "loading",
    "downloading",
    "draining",
    "unloaded",
    "failed",
)


def union(nodes: Iterable[NodeView], catalogue: Iterable[ModelState] = ()) -> tuple[ModelState, ...]:
    """One state a model over all nodes that take work, in the order of their ids.

    Of the catalogue only what no node reports is added; what one does is listed by the catalogue's names too.
    """
    found: dict[str, list[tuple[NodeView, Replica]]] = {}
    for view in nodes:
        if view.takes_work:
            for replica in view.replicas:
                found.setdefault(replica.id, []).append((view, replica))
    listed = {model: _state(model, replicas) for model, replicas in found.items()}
    by_name = {fold(name): each.id for each in listed.values() for name in (*each.aliases, each.id)}
    for model in catalogue:
        names = (model.id, *model.aliases)
        known = next((by_name[fold(name)] for name in names if fold(name) in by_name), None)
        if known is None:
            listed[model.id] = model
        else:
            listed[known] = _also_called(listed[known], names)
    return tuple(sorted(listed.values(), key=_id))


def _also_called(model: ModelState, names: Iterable[str]) -> ModelState:
    aliases = dict.fromkeys((*model.aliases, *names))
    aliases.pop(model.id, None)
    return replace(model, aliases=tuple(aliases))


def _id(model: ModelState) -> str:
    return model.id


def _state(model: str, held: list[tuple[NodeView, Replica]]) -> ModelState:
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
            dict.fromkeys(alias for _, replica in held for alias in replica.aliases if alias != model)
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
        source="on " + ", ".join(view.name for view, _ in best),
    )
