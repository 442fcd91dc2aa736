"""`ganglion fleet plan`: which model would go on which node, and why."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, assert_never

import msgspec
from cyclopts import Parameter

from ganglion.cli.flags import Json
from ganglion.cli.remote.gateway_client import DEFAULT_URL, GATEWAY_VARIABLE
from ganglion.cli.terminal.console import say
from ganglion.cli.terminal.format import NOTHING, memory_words
from ganglion.cli.terminal.output import TableRow, print_json, print_table
from ganglion.core.errors import InvalidValue
from ganglion.registry.files.whole_files import read_text

if TYPE_CHECKING:
    from ganglion.gateway.node import NodeView
    from ganglion.gateway.placing.placement import PlannedModel, PlanStep

_HEADINGS: Final = ("model", "memory", "node", "what", "why")


class _PlannedStep(msgspec.Struct, frozen=True):
    """One line of the plan, as `--json` prints it."""

    model: str
    required_mb: int
    node: str | None
    action: str
    evictions: tuple[str, ...]
    devices: tuple[int, ...]
    why: str
    reasons: dict[str, str]
    """By node, where it has no place."""


def plan(
    *,
    catalogue: Annotated[Path, Parameter(help="The models, as docs/catalogue.md describes them.")],
    gateway: Annotated[
        str | None,
        Parameter(
            help=f"Address of a gateway, whose nodes are meant (default {DEFAULT_URL}).", show_default=False
        ),
    ] = None,
    node: Annotated[
        tuple[str, ...],
        Parameter(help="Address of a node, or NAME=URL; once for each.", show_default=False, negative=()),
    ] = (),
    api_key: Annotated[
        str | None,
        Parameter(help="A key of the gateway or the nodes.", env_var="GANGLION_API_KEY", show_default=False),
    ] = None,
    json: Json = False,
) -> int:
    """Show which model would go on which node, and why; the status is 1 when one has no place."""
    from ganglion.gateway.placing.catalogue import parse_catalogue
    from ganglion.gateway.placing.placement import plan_placements as planned_for

    if gateway is not None and node:
        raise InvalidValue(
            "--gateway and --node exclude each other.", hint="A gateway is asked for its own nodes."
        )
    if not node:
        gateway = gateway or os.environ.get(GATEWAY_VARIABLE) or DEFAULT_URL
    models = parse_catalogue(read_text(catalogue, "The catalogue"), str(catalogue))
    nodes = _nodes(gateway, node, api_key)
    planned = planned_for(models, nodes)
    if json:
        print_json([_step(each, step) for each in planned for step in each.steps])
    else:
        _print(planned, nodes)
    return 0 if all(each.is_feasible for each in planned) else 1


def _nodes(gateway: str | None, nodes: tuple[str, ...], api_key: str | None) -> "dict[str, NodeView]":
    import asyncio

    from ganglion.cli.fleet.read_fleet import node_spec, read_gateway, read_nodes

    if gateway is not None:
        return asyncio.run(read_gateway(gateway, api_key))
    specs = [node_spec(node, api_key) for node in nodes]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise InvalidValue(f"Two nodes would be called {name!r}.", hint="Give each as NAME=URL.")
    return asyncio.run(read_nodes(specs))


def _print(planned: "tuple[PlannedModel, ...]", nodes: "dict[str, NodeView]") -> None:
    for view in nodes.values():
        if not view.is_healthy:
            say(f"node {view.name} does not answer: {view.error or 'it is not healthy'}")
    rows = []
    for each in planned:
        memory = memory_words(each.required_mb) if each.required_mb else NOTHING
        for step in map(_shown, (_step(each, step) for step in each.steps)):
            rows.append(TableRow((step.model, memory, step.node or NOTHING, step.action, step.why)))
    print_table(_HEADINGS, rows, right=("memory",))


def _shown(step: _PlannedStep) -> _PlannedStep:
    """With the reason of each node on a line of its own."""
    if not step.reasons:
        return step
    reasons = "\n".join(f"{node}: {reason}" for node, reason in step.reasons.items())
    return msgspec.structs.replace(step, why=reasons)


def _step(planned: "PlannedModel", step: "PlanStep") -> _PlannedStep:
    from ganglion.gateway.placing.placement import AlreadyHeld, Infeasible, Placement

    name, required_mb = planned.model.id, planned.required_mb
    match step:
        case AlreadyHeld(node=node, status=status):
            return _PlannedStep(name, required_mb, node, "stays", (), (), f"it is {status} there", {})
        case Placement(node=node, evictions=evictions, devices=devices, why=why):
            return _PlannedStep(name, required_mb, node, "goes", evictions, devices, why, {})
        case Infeasible(reasons=reasons):
            return _PlannedStep(name, required_mb, None, "no place", (), (), step.words, dict(reasons))
        case _:
            assert_never(step)
