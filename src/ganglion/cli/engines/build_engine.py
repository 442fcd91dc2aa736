"""`ganglion engines build`: compile llama.cpp for what this machine has."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Group, Parameter

from ganglion.cli.engines.index_flags import INDEX_UNSET, IndexFlags
from ganglion.cli.flags import AT_LEAST_1, option
from ganglion.cli.terminal.console import INTERRUPTED, say

_FOR: Final = Group("For what (one of them)", sort_key=1)


def build(
    engine: Annotated[Literal["llama"], Parameter(help="The engine: llama.")],
    /,
    *,
    cuda: Annotated[bool, Parameter(help="NVIDIA GPUs.", group=_FOR, negative=())] = False,
    vulkan: Annotated[bool, Parameter(help="GPUs with a Vulkan driver.", group=_FOR, negative=())] = False,
    hip: Annotated[bool, Parameter(help="AMD GPUs with ROCm.", group=_FOR, negative=())] = False,
    metal: Annotated[bool, Parameter(help="Apple's GPUs.", group=_FOR, negative=())] = False,
    cpu: Annotated[
        bool, Parameter(help="This processor alone, with everything it can do.", group=_FOR, negative=())
    ] = False,
    jobs: Annotated[
        int | None, option("Compilers that run at once (default: the cores that may be used).", AT_LEAST_1)
    ] = None,
    source: Annotated[
        Path | None,
        Parameter(help="The folder of llama.cpp, or xllamacpp's source package, in place of a download."),
    ] = None,
    define: Annotated[
        list[str] | None,
        Parameter(help="More for CMake, as CMAKE_CUDA_ARCHITECTURES=90; may be repeated.", negative=()),
    ] = None,
    index: IndexFlags = INDEX_UNSET,
) -> int:
    """Build an engine here; ends with 130 when it was interrupted, and then goes on the next time."""
    from ganglion.cli.engines.step_display import steps
    from ganglion.core.home import engine_folder
    from ganglion.engines.installing.place import EnginePlace
    from ganglion.engines.installing.reporter import Reporter
    from ganglion.engines.llama.building.build import BuildRequest
    from ganglion.engines.llama.building.build import build as build_llama
    from ganglion.engines.llama.building.toolchain import find_toolchain
    from ganglion.engines.resources import usable_cores

    chosen = _one_of({"cuda": cuda, "vulkan": vulkan, "hip": hip, "metal": metal, "cpu": cpu})
    toolchain = find_toolchain(chosen)
    request = BuildRequest(
        toolchain, jobs or usable_cores(), source, tuple(define or ()), index.package_index()
    )
    place = EnginePlace(engine_folder(engine, os.environ))
    began_s = time.monotonic()
    say(f"building {engine} for {chosen} with {toolchain.compiler or toolchain.cmake}")
    try:
        with steps(engine) as show:
            built = build_llama(request, place, Reporter(show, say))
    except KeyboardInterrupt:
        say(f"stopped; ganglion engines build {engine} --{chosen} goes on from there")
        return INTERRUPTED
    for device in built.report.devices:
        memory = f", {device.total_bytes >> 20} MiB" if device.total_bytes else ""
        say(f"  {device.name}: {device.description}{memory}")
    if chosen != "cpu" and not built.report.can_offload:
        say("warning: the library finds no GPU here; models run on the processor until it does")
    say(f"built and tried in {time.monotonic() - began_s:.0f} s; nodes use it from their next start")
    if os.environ.get("GANGLION_LIBLLAMA"):
        say("warning: GANGLION_LIBLLAMA is set and wins over it")
    sys.stdout.write(f"{built.library}\n")
    return 0


_Chosen = Literal["cpu", "cuda", "vulkan", "hip", "metal"]


def _one_of(named: dict[_Chosen, bool]) -> _Chosen:
    from ganglion.core.errors import InvalidValue, MissingParameter

    chosen = [name for name, is_named in named.items() if is_named]
    if len(chosen) == 1:
        return chosen[0]
    hint = "ganglion doctor says which one fits this machine."
    if chosen:
        raise InvalidValue(
            f"A build is for one kind of device; found {' and '.join(f'--{name}' for name in chosen)}.",
            hint=hint,
        )
    raise MissingParameter(
        f"What to build for is missing: one of {', '.join(f'--{name}' for name in named)}.", hint=hint
    )
