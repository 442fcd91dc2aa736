"""`ganglion engines remove`: give the disk space of a built or installed engine back."""

import os
import shutil
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ganglion.cli.terminal.console import say


def remove(
    engine: Annotated[
        Literal["llama", "vllm"], Parameter(help="The engine: llama (what was built) or vllm.")
    ],
    /,
    *,
    into: Annotated[
        Path | None, Parameter(help="The folder that it was installed into (default: in GANGLION_HOME).")
    ] = None,
) -> int:
    """Remove an engine that was built or installed here, and what was left of attempts."""
    from ganglion.cli.terminal.format import size_words
    from ganglion.core.home import engine_folder
    from ganglion.engines.installing.place import EnginePlace

    place = EnginePlace(engine_folder(engine, os.environ) if into is None else into / engine)
    place.check_free()
    with place.locked(lambda: say(f"waiting for another program that works on {engine}")):
        freed_bytes = place.remove()
        for work in (place.link.parent / ".build").glob(f"{engine}-*"):
            shutil.rmtree(work, ignore_errors=True)
    say(f"removed {engine}, {size_words(freed_bytes)}" if freed_bytes else f"no {engine} was here")
    return 0
