"""`ganglion fleet status`: every node of a gateway, its models, and what cannot be served."""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from ganglion.cli.flags import Json
from ganglion.cli.remote.gateway_client import GATEWAY_UNSET, GatewayApiClient, GatewayFlags
from ganglion.cli.terminal.console import visible
from ganglion.cli.terminal.format import NOTHING, age_words, memory_words
from ganglion.cli.terminal.output import TableRow, print_json, stdout_console, table_of
from ganglion.core.errors import UpstreamUnavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ganglion.wire.fleet import ReplicaState
    from ganglion.wire.fleet_overview import FleetOverview, NodeOverview

MODELS_SHOWN: Final = 12
"""Of one node: a cloud lists hundreds."""
_NODE_HEADINGS: Final = (
    "node",
    "health",
    "in flight",
    "free memory",
    "last heard",
    "model",
    "status",
    "load",
)
_NUMBERS: Final = ("in flight", "free memory")
_MODEL_COLUMNS: Final = 3
_ELSEWHERE: Final = ("",) * (len(_NODE_HEADINGS) - _MODEL_COLUMNS)


def fleet_tables(overview: "FleetOverview", trouble: str | None = None) -> "RenderableType":
    """Everything there is to see; `trouble` is why it is out of date."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(summary(overview), "bold")]
    if trouble is not None:
        parts.append(Text(visible(trouble), "bold"))
    rows = [row for node in overview.nodes for row in _rows(node)]
    if rows:
        parts.append(table_of(_NODE_HEADINGS, rows, right=_NUMBERS))
    troubled = [f"{visible(node.name)}: {visible(node.error)}" for node in overview.nodes if node.error]
    if troubled:
        parts.append(Text("\n".join([*troubled, ""])))
    if overview.unservable:
        parts.append(Text("cannot be served", "bold"))
        missing = [
            TableRow((visible(each.model), each.code, visible(each.why))) for each in overview.unservable
        ]
        parts.append(table_of(("model", "code", "why"), missing))
    return Group(*parts)


def summary(overview: "FleetOverview") -> str:
    """The fleet in one line."""
    healthy = sum(node.healthy for node in overview.nodes)
    busy = sum(node.in_flight for node in overview.nodes)
    return f"{overview.status}: {healthy} of {len(overview.nodes)} nodes healthy, {busy} requests in flight"


def _rows(node: "NodeOverview") -> Iterator[TableRow]:
    """The node's line, with its first model on it and the others below."""
    first, *others = list(_models(node)) or [(NOTHING, "", "")]
    yield TableRow(_node_cells(node) + first)
    for cells in others:
        yield TableRow(_ELSEWHERE + cells)


def _node_cells(node: "NodeOverview") -> tuple[str, ...]:
    name = node.name if node.kind == "ganglion" else f"{node.name} ({node.kind})"
    devices = node.devices if node.healthy else ()  # what it said last is no longer true
    free = " + ".join(memory_words(device.memory_free_mb) for device in devices)
    heard = "never" if node.heard_s_ago is None else age_words(node.heard_s_ago)
    return visible(name), _health(node), str(node.in_flight), free or NOTHING, heard


def _health(node: "NodeOverview") -> str:
    if not node.healthy:
        return "unreachable"
    if node.draining:
        return "draining"
    return "cooling down" if node.cooling else "ok"


def _models(node: "NodeOverview") -> Iterator[tuple[str, ...]]:
    held = sorted(
        (model for model in node.models if model.status != "unloaded"),
        key=lambda model: (-model.in_flight - model.queued, model.status == "loaded", model.id),
    )
    for model in held[:MODELS_SHOWN]:
        yield visible(model.id), _status(model), _load(model)
    rest, cold = len(held) - MODELS_SHOWN, len(node.models) - len(held)
    if rest > 0:
        yield f"and {rest} more", "", ""
    if cold:
        yield f"{cold} not loaded", "", ""


def _status(model: "ReplicaState") -> str:
    return model.status if model.error is None else f"{model.status}: {visible(model.error)}"


def _load(model: "ReplicaState") -> str:
    slots = f" of {model.slots_total}" if model.slots_total else ""
    waiting = f" + {model.queued} waiting" if model.queued else ""
    return f"{model.in_flight}{slots}{waiting}"


PERIOD_S: Final = 1.0
_DEGRADED: Final = 1


def status(
    *,
    watch: Annotated[
        bool, Parameter(help="Show it anew every second, until Ctrl-C.", negative=(), show_default=False)
    ] = False,
    json: Json = False,
    gateway: GatewayFlags = GATEWAY_UNSET,
) -> int:
    """Show every node, its models, and what cannot be served."""
    asked = gateway.client()
    overview = asked.overview()
    if watch:
        return _watch(asked, overview, json=json)
    if json:
        print_json(overview)
    else:
        stdout_console().print(fleet_tables(overview))
    return _DEGRADED if overview.status == "degraded" else 0


def _watch(asked: GatewayApiClient, overview: "FleetOverview", *, json: bool) -> int:
    """Show it until Ctrl-C, which is a normal end."""
    try:
        if json:
            _lines(asked, overview)
        else:
            _tables(asked, overview)
    except KeyboardInterrupt:
        pass
    return 0


def _lines(asked: GatewayApiClient, overview: "FleetOverview") -> None:
    while True:
        sys.stdout.write(msgspec.json.encode(overview).decode() + "\n")
        sys.stdout.flush()
        time.sleep(PERIOD_S)
        overview = asked.overview()


def _tables(asked: GatewayApiClient, overview: "FleetOverview") -> None:
    from rich.live import Live

    where = stdout_console()
    if not where.is_terminal:
        for each, trouble in _news(asked, overview):
            where.print(fleet_tables(each, trouble))
            where.file.flush()
        return
    with Live(console=where, auto_refresh=False) as live:
        for each, trouble in _news(asked, overview):
            live.update(fleet_tables(each, trouble), refresh=True)


def _news(asked: GatewayApiClient, overview: "FleetOverview") -> Iterator[tuple["FleetOverview", str | None]]:
    """The gateway's latest state, and the reason where it is not current; without end."""
    trouble: str | None = None
    while True:
        yield overview, trouble
        time.sleep(PERIOD_S)
        try:
            overview, trouble = asked.overview(), None
        except UpstreamUnavailable as error:  # it may be starting again
            trouble = f"{error.message} This is what it said last:"
