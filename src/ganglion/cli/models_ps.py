"""`ganglion models ps`: the models of a running node, and what each is doing."""

import time
from typing import TYPE_CHECKING, Final

import msgspec

from ganglion.cli.models_here import Json
from ganglion.cli.node import NODE_UNSET, NodeFlags

if TYPE_CHECKING:
    from ganglion.wire.health import ModelHealth
    from ganglion.wire.management import HeldModel

HEADINGS: Final = ("id", "status", "memory", "context", "in flight", "pinned", "last used")
NUMBERS: Final = ("memory", "context", "in flight")


class Running(msgspec.Struct, frozen=True):
    """One model, as `--json` prints it."""

    id: str
    status: str
    memory_mb: int
    context_length: int
    in_flight: int
    queued: int
    pinned: bool
    priority: int
    last_used: float | None
    aliases: tuple[str, ...]
    source: str
    bytes_done: int
    bytes_total: int
    error: str | None


def ps(*, json: Json = False, node: NodeFlags = NODE_UNSET) -> None:
    """Show the models of a running node."""
    from ganglion.cli.output import Row, print_json, print_table

    asked = node.node()
    health = {model.id: model for model in asked.health().models}
    running = [_running(model, health.get(model.id)) for model in asked.models()]
    if json:
        print_json(running)
    else:
        print_table(HEADINGS, [Row(_cells(model), model.error) for model in running], right=NUMBERS)


def _running(model: "HeldModel", health: "ModelHealth | None") -> Running:
    return Running(
        id=model.id,
        status=model.status,
        memory_mb=model.memory_mb,
        context_length=model.context_length,
        in_flight=health.in_flight if health is not None else 0,
        queued=health.queued if health is not None else 0,
        pinned=model.pinned,
        priority=model.priority,
        last_used=model.last_used,
        aliases=model.aliases,
        source=model.source,
        bytes_done=model.download.done if model.download is not None else 0,
        bytes_total=model.download.total if model.download is not None else 0,
        error=model.error,
    )


def _cells(model: Running) -> tuple[str, ...]:
    from ganglion.cli.words import NOTHING, age_words, memory_words, number_words

    waiting = f" + {model.queued} waiting" if model.queued else ""
    return (
        model.id,
        _status(model),
        memory_words(model.memory_mb) if model.memory_mb else NOTHING,
        number_words(model.context_length),
        f"{model.in_flight}{waiting}",
        "yes" if model.pinned else "",
        "never" if model.last_used is None else age_words(time.time() - model.last_used),
    )


def _status(model: Running) -> str:
    if not model.bytes_total:
        return model.status
    return f"{model.status} {100 * model.bytes_done // model.bytes_total} %"
