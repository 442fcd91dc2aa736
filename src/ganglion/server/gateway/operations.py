"""What an operator moves: a node out of service, a model from node to node."""

from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.gateway.decision import Asked, Chooser, Chosen, Translated
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.loader import FleetLoader
from ganglion.gateway.node import NodeView
from ganglion.wire.overview import Drain, Move


async def drain(fleet: Fleet, loader: FleetLoader, chooser: Chooser, asked: Drain) -> list[str]:
    """Give a node no new work, and have what only it held loaded elsewhere; what runs on it goes on."""
    view = _node(fleet, asked.node)
    fleet.rest(view.name, is_resting=not asked.undo)
    if asked.undo:
        return [f"{view.name} takes work again"]
    steps = [f"{view.name} takes no new work"]
    for replica in view.replicas:
        if not replica.is_servable:
            continue
        if isinstance(chooser.choose(Asked(replica.id, "chat")), Chosen | Translated):
            steps.append(f"{replica.id} is served elsewhere")
            continue
        try:
            await loader.load(replica.id)
            steps.append(f"{replica.id} was loaded elsewhere")
        except GanglionError as error:
            steps.append(f"{replica.id} is served by nobody else: {error.message}")
    return steps


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
