"""A fleet's overview as tables for people."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ganglion.cli.output import Row, table_of
from ganglion.cli.shades import visible
from ganglion.cli.words import NOTHING, age_words, memory_words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ganglion.wire.fleet import ReplicaState
    from ganglion.wire.overview import FleetOverview, NodeOverview

MODELS_SHOWN: Final = 12
"""Of one node: a cloud lists hundreds."""
NODE_HEADINGS: Final = ("node", "health", "in flight", "free memory", "last heard", "model", "status", "load")
NUMBERS: Final = ("in flight", "free memory")
MODEL_COLUMNS: Final = 3
ELSEWHERE: Final = ("",) * (len(NODE_HEADINGS) - MODEL_COLUMNS)


def view(overview: "FleetOverview", trouble: str | None = None) -> "RenderableType":
    """Everything there is to see; `trouble` is why it is not news."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(summary(overview), "bold")]
    if trouble is not None:
        parts.append(Text(visible(trouble), "bold"))
    rows = [row for node in overview.nodes for row in _rows(node)]
    if rows:
        parts.append(table_of(NODE_HEADINGS, rows, right=NUMBERS))
    troubled = [f"{visible(node.name)}: {visible(node.error)}" for node in overview.nodes if node.error]
    if troubled:
        parts.append(Text("\n".join([*troubled, ""])))
    if overview.unservable:
        parts.append(Text("cannot be served", "bold"))
        missing = [Row((visible(each.model), each.code, visible(each.why))) for each in overview.unservable]
        parts.append(table_of(("model", "code", "why"), missing))
    return Group(*parts)


def summary(overview: "FleetOverview") -> str:
    """The fleet in one line."""
    healthy = sum(node.healthy for node in overview.nodes)
    busy = sum(node.in_flight for node in overview.nodes)
    return f"{overview.status}: {healthy} of {len(overview.nodes)} nodes healthy, {busy} requests in flight"


def _rows(node: "NodeOverview") -> Iterator[Row]:
    """The node's line, with its first model on it and the others below."""
    first, *others = list(_models(node)) or [(NOTHING, "", "")]
    yield Row(_node_cells(node) + first)
    for cells in others:
        yield Row(ELSEWHERE + cells)


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
