"""`ganglion models load`, `unload` and `ps`: the models of a running node."""

import time
from typing import TYPE_CHECKING, Final

import msgspec

from ganglion.cli.flags import Json
from ganglion.cli.remote.node_client import NODE_UNSET, NodeFlags

if TYPE_CHECKING:
    from ganglion.wire.health import ModelHealth
    from ganglion.wire.management import ManagedModel

import sys
from typing import Annotated

from cyclopts import Parameter

from ganglion.cli.flags import AT_LEAST_1, option
from ganglion.cli.models.local_models import ModelName
from ganglion.cli.terminal.console import INTERRUPTED, say
from ganglion.wire.management import LoadBody, LoadResult, UnloadBody

_HEADINGS: Final = ("id", "status", "memory", "context", "in flight", "pinned", "last used")
_NUMBERS: Final = ("memory", "context", "in flight")


class _RunningModel(msgspec.Struct, frozen=True):
    """One model, as `--json` prints it."""

    id: str
    status: str
    memory_mb: int
    context_length: int
    in_flight: int
    queued: int
    pinned: bool
    priority: int
    devices: tuple[str, ...]
    last_used: float | None
    aliases: tuple[str, ...]
    source: str
    bytes_done: int
    bytes_total: int
    error: str | None


def ps(*, json: Json = False, node: NodeFlags = NODE_UNSET) -> None:
    """Show the models of a running node."""
    from ganglion.cli.terminal.output import TableRow, print_json, print_table

    asked = node.client()
    health = {model.id: model for model in asked.health().models}
    running = [_running(model, health.get(model.id)) for model in asked.models()]
    if json:
        print_json(running)
    else:
        print_table(_HEADINGS, [TableRow(_cells(model), model.error) for model in running], right=_NUMBERS)


def _running(model: "ManagedModel", health: "ModelHealth | None") -> _RunningModel:
    return _RunningModel(
        id=model.id,
        status=model.status,
        memory_mb=model.memory_mb,
        context_length=model.context_length,
        in_flight=health.in_flight if health is not None else 0,
        queued=health.queued if health is not None else 0,
        pinned=model.pinned,
        priority=model.priority,
        devices=model.devices,
        last_used=model.last_used,
        aliases=model.aliases,
        source=model.source,
        bytes_done=model.download.done if model.download is not None else 0,
        bytes_total=model.download.total if model.download is not None else 0,
        error=model.error,
    )


def _cells(model: _RunningModel) -> tuple[str, ...]:
    from ganglion.cli.terminal.format import NOTHING, age_words, memory_words, number_words

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


def _status(model: _RunningModel) -> str:
    if not model.bytes_total:
        return model.status
    return f"{model.status} {100 * model.bytes_done // model.bytes_total} %"


def load(
    name: ModelName,
    /,
    *,
    context: Annotated[int | None, option("Longest single sequence, in tokens.", AT_LEAST_1)] = None,
    quant: Annotated[str | None, Parameter(help="Quantisation, as Q8_0.")] = None,
    tensor_parallel: Annotated[
        int | None, option("GPUs that each layer is divided over.", AT_LEAST_1)
    ] = None,
    pipeline_parallel: Annotated[
        int | None, option("Groups of GPUs that the layers are divided over.", AT_LEAST_1)
    ] = None,
    devices: Annotated[
        str | None, Parameter(help="GPUs to use, by index, as 0,1; left out, the freest.")
    ] = None,
    pin: Annotated[
        bool | None,
        Parameter(help="Never evict it to make room; --no-pin lets go of that.", negative="--no-pin"),
    ] = None,
    wait: Annotated[
        bool, Parameter(help="Come back when it is loaded; --no-wait does not.", show_default=False)
    ] = True,
    json: Json = False,
    node: NodeFlags = NODE_UNSET,
) -> int:
    """Load a model into a running node, downloading it first if need be."""
    body = LoadBody(
        model_id=name,
        quant=quant,
        context_length=context,
        pinned=pin,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        devices=None if devices is None else [*map(str.strip, devices.split(","))],
    )
    if not wait:
        begun = node.client().begin_load(body)
        _print(begun, json=json)
        if begun.status != "loaded":
            say("loading in the background; ganglion models ps shows the progress")
        return 0
    began_s = time.monotonic()
    try:
        loaded = _loaded(body, node)
    except KeyboardInterrupt:
        say(f"not waiting any longer; the node goes on, ganglion models unload {name} stops it")
        return INTERRUPTED
    _print(loaded, json=json)
    say(f"loaded in {time.monotonic() - began_s:.1f} s")
    return 0


def unload(
    name: ModelName,
    /,
    *,
    force: Annotated[
        bool, Parameter(help="Do not wait for running requests; they end with an error.", negative=())
    ] = False,
    json: Json = False,
    node: NodeFlags = NODE_UNSET,
) -> None:
    """Let a running node give a model's memory back."""
    _print(node.client().unload(UnloadBody(model_id=name, force=force)), json=json)


def _loaded(body: LoadBody, flags: NodeFlags) -> LoadResult:
    from ganglion.cli.terminal.progress import load_bar

    loaded = LoadResult("unloaded", body.model_id)
    with load_bar(body.model_id) as show:
        for step in flags.client().load(body):
            show(step.status, step.bytes_done, step.bytes_total)
            loaded = LoadResult(step.status, step.model)
    return loaded


def _print(answer: LoadResult, *, json: bool) -> None:
    from ganglion.cli.terminal.output import print_json

    if json:
        print_json(answer)
    else:
        sys.stdout.write(f"{answer.model} {answer.status}\n")
