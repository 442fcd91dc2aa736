"""`ganglion fleet drain` and `move`: take work from a node, bring a model to another one."""

import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

from ganglion.cli.flags import Json
from ganglion.cli.remote.gateway_client import GATEWAY_UNSET, GatewayFlags
from ganglion.cli.terminal.console import INTERRUPTED, say, visible
from ganglion.cli.terminal.output import print_json
from ganglion.cli.terminal.progress import spinner
from ganglion.core.errors import InvalidValue
from ganglion.wire.fleet import NodeNameParam
from ganglion.wire.fleet_overview import Drain, FleetActionDone, Move

_NodeNameArgument = Annotated[str, Parameter(help="A node's name, as `ganglion fleet status` shows it.")]


def drain(
    node: _NodeNameArgument,
    /,
    *,
    undo: Annotated[bool, Parameter(help="Let it have work again.", negative=())] = False,
    force: Annotated[bool, Parameter(help="Also where nobody else has what it holds.", negative=())] = False,
    json: Json = False,
    gateway: GatewayFlags = GATEWAY_UNSET,
) -> None:
    """Send no new work to a node."""
    asked, body = gateway.client(), Drain(node=_name(node), undo=undo, force=force)
    with spinner(f"what {node} holds to others"):
        done = asked.drain(body)
    _print(done, f"{node} takes work again" if undo else f"{node} gets no new work", json=json)
    if not undo:
        say("requests that run there are finished; ganglion fleet status --watch shows when none are left")


def move(
    model: Annotated[str, Parameter(help="A model's id or alias.")],
    node: _NodeNameArgument,
    /,
    *,
    keep: Annotated[bool, Parameter(help="Leave it where it is, too.", negative=())] = False,
    json: Json = False,
    gateway: GatewayFlags = GATEWAY_UNSET,
) -> int:
    """Bring a model to another node."""
    asked, body = gateway.client(), Move(model=model, node=_name(node), keep=keep)
    try:
        with spinner(f"{model} to {node}"):
            done = asked.move(body)
    except KeyboardInterrupt:
        say("no longer waiting; the gateway goes on, and ganglion fleet status shows the progress")
        return INTERRUPTED
    _print(done, f"{model} is on {node}", json=json)
    return 0


def _name(node: str) -> str:
    try:
        return msgspec.convert(node, NodeNameParam)
    except msgspec.ValidationError:
        raise InvalidValue(
            f"{node!r} is not the name of a node: letters, digits, '_', '.' and '-' are expected.",
            param="node",
            hint="ganglion fleet status lists the nodes.",
        ) from None


def _print(done: FleetActionDone, otherwise: str, *, json: bool) -> None:
    if json:
        print_json(done)
        return
    for step in done.steps or (otherwise,):
        sys.stdout.write(f"{visible(step)}\n")
