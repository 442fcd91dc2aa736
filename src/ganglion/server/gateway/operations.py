"""What an operator moves: a node out of service, a model from node to node."""

from collections.abc import Mapping

from ganglion.core.errors import GanglionError, InvalidRequest, InvalidValue
from ganglion.gateway.decision import Asked, Chooser, Chosen, Translated
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.loader import FleetLoader
from ganglion.gateway.node import NodeView
from ganglion.wire.overview import Drain, Move


class OnlyHolder(InvalidRequest):
    """A node holds what nobody else has."""

    status = 409
    code = "only_holder"

    def __init__(self, node: str, missing: Mapping[str, str]) -> None:
        reasons = " ".join(f"{model}: {why}" for model, why in missing.items())
        super().__init__(
            f"Nobody but {node} has {', '.join(missing)}, and requests for that would fail. {reasons}",
            param="node",
            hint="Force it to drain the node all the same.",
        )


async def drain(fleet: Fleet, loader: FleetLoader, chooser: Chooser, asked: Drain) -> list[str]:
    """Have what only a node holds loaded elsewhere, and then give it no new work; what runs on it goes on.

    Raises OnlyHolder where nobody else can have a model, unless that is wanted all the same.
    """
    view = _node(fleet, asked.node)
    if asked.undo:
        fleet.rest(view.name, is_resting=False)
        return [f"{view.name} takes work again"]
    steps, missing = [], {}
    for replica in view.replicas if view.takes_work else ():
        if not replica.is_servable:
            continue
        try:
            is_loaded = await loader.bring_elsewhere(view.name, replica)
            steps.append(f"{replica.id} {'was loaded' if is_loaded else 'is served'} elsewhere")
        except GanglionError as error:
            if _has_stand_in(chooser, loader.name_of(view.name, replica), view.name):
                steps.append(f"{replica.id} is answered for by a fallback")
            else:
                missing[replica.id] = error.message
    if missing and not asked.force:
        raise OnlyHolder(view.name, missing)
    fleet.rest(view.name, is_resting=True)
    alone = [f"{model} is served by nobody now: {why}" for model, why in missing.items()]
    return [f"{view.name} takes no new work", *steps, *alone]


def _has_stand_in(chooser: Chooser, model: str, node: str) -> bool:
    """Whether requests for a model are answered without the node, by another model."""
    decision = chooser.choose(Asked(model, "chat", tried=frozenset((node,))))
    return isinstance(decision, Chosen | Translated)


async def move(fleet: Fleet, loader: FleetLoader, asked: Move) -> list[str]:
    """Load a model on a node, and then let the others go of it, unless they shall keep it."""
    target = _node(fleet, asked.node)
    others = [name for name in loader.holders(asked.model) if name != target.name]
    await loader.load_on(asked.model, target.name)
    steps = [f"{asked.model} is loaded on {target.name}"]
    for name in () if asked.keep else others:
        await loader.unload_from(asked.model, name)
        steps.append(f"{name} has let it go")
    return steps


def _node(fleet: Fleet, name: str) -> NodeView:
    view = fleet.nodes.get(name)
    if view is None:
        there = ", ".join(sorted(fleet.nodes)) or "none"
        raise InvalidValue(
            f"There is no node {name!r} in this fleet.", param="node", hint=f"There are: {there}."
        )
    return view
