"""`ganglion models load` and `unload`: a running node takes a model in, or lets it go."""

import sys
import time
from typing import Annotated

from cyclopts import Parameter

from ganglion.cli.models_here import Json, Name
from ganglion.cli.node import NODE_UNSET, NodeFlags
from ganglion.cli.options import AT_LEAST_1, option
from ganglion.cli.talk import say
from ganglion.wire.management import LoadBody, Loaded, UnloadBody

INTERRUPTED = 130


def load(
    name: Name,
    /,
    *,
    context: Annotated[int | None, option("Longest single sequence, in tokens.", AT_LEAST_1)] = None,
    quant: Annotated[str | None, Parameter(help="Quantisation, as Q8_0.")] = None,
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
    body = LoadBody(model_id=name, quant=quant, context_length=context, pinned=pin)
    if not wait:
        begun = node.node().begin_load(body)
        _print(begun, json=json)
        if begun.status != "loaded":
            say("it loads in the background; ganglion models ps shows how far it is")
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
    name: Name,
    /,
    *,
    force: Annotated[
        bool, Parameter(help="Do not wait for running requests; they end with an error.", negative=())
    ] = False,
    json: Json = False,
    node: NodeFlags = NODE_UNSET,
) -> None:
    """Let a running node give a model's memory back."""
    _print(node.node().unload(UnloadBody(model_id=name, force=force)), json=json)


def _loaded(body: LoadBody, flags: NodeFlags) -> Loaded:
    from ganglion.cli.progress import load_bar

    loaded = Loaded("unloaded", body.model_id)
    with load_bar(body.model_id) as show:
        for step in flags.node().load(body):
            show(step.status, step.bytes_done, step.bytes_total)
            loaded = Loaded(step.status, step.model)
    return loaded


def _print(answer: Loaded, *, json: bool) -> None:
    from ganglion.cli.output import print_json

    if json:
        print_json(answer)
    else:
        sys.stdout.write(f"{answer.model} {answer.status}\n")
