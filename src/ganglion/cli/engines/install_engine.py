"""`ganglion engines install`: an engine in a Python environment of its own."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Group, Parameter

from ganglion.cli.engines.index_flags import INDEX_UNSET, IndexFlags
from ganglion.cli.terminal.console import INTERRUPTED, say
from ganglion.engines.installing.environments import EnvironmentName

if TYPE_CHECKING:
    from ganglion.engines.installing.environment_installer import Installed
    from ganglion.engines.installing.environments import FlavourName

_FOR: Final = Group("For what (left out: what this machine has)", sort_key=1)


def install(
    engine: Annotated[EnvironmentName, Parameter(help="The engine: vllm.")],
    /,
    *,
    cuda: Annotated[bool, Parameter(help="NVIDIA GPUs.", group=_FOR, negative=())] = False,
    cpu: Annotated[bool, Parameter(help="Processors.", group=_FOR, negative=())] = False,
    python: Annotated[
        Path | None,
        Parameter(help="The Python to make the environment with (default: this one, else one that fits)."),
    ] = None,
    into: Annotated[
        Path | None, Parameter(help="A folder for environments (default: engines in GANGLION_HOME).")
    ] = None,
    requirements: Annotated[
        Path | None, Parameter(help="A lock file with hashes in place of the one that we tested.")
    ] = None,
    again: Annotated[bool, Parameter(help="Install it again, also when it is here.", negative=())] = False,
    torch_index_url: Annotated[
        str | None,
        Parameter(
            help="Where PyTorch for processors comes from when the index has none (default: PyTorch's)."
        ),
    ] = None,
    index: IndexFlags = INDEX_UNSET,
) -> int:
    """Install an engine here; ends with 130 when it was interrupted, and then goes on the next time."""
    from ganglion.cli.engines.step_display import steps
    from ganglion.core.home import engine_folder
    from ganglion.engines.installing.environment_installer import InstallRequest
    from ganglion.engines.installing.environment_installer import install as install_environment
    from ganglion.engines.installing.environments import ENVIRONMENTS
    from ganglion.engines.installing.place import EnginePlace
    from ganglion.engines.installing.reporter import Reporter

    kind = ENVIRONMENTS[engine]
    chosen = _flavour(engine, is_cuda=cuda, is_cpu=cpu)
    request = InstallRequest(
        engine,
        kind,
        chosen,
        None if python is None else python.expanduser(),
        index.package_index(),
        torch_index_url,
        requirements,
        again,
    )
    place = EnginePlace(engine_folder(engine, os.environ) if into is None else into / engine)
    began_s = time.monotonic()
    say(f"installing {engine} {request.flavour.summary}, into {place.link}")
    try:
        with steps(engine) as show:
            done = install_environment(request, place, Reporter(show, say))
    except KeyboardInterrupt:
        say("stopped; the same command goes on from there")
        return INTERRUPTED
    _tell(engine, done, time.monotonic() - began_s)
    sys.stdout.write(f"{done.folder / 'bin' / 'python'}\n")
    return 0


def _flavour(engine: str, *, is_cuda: bool, is_cpu: bool) -> "FlavourName":
    """The one that was named, else the one for this machine."""
    from ganglion.cli.system.this_machine import has_nvidia_gpu
    from ganglion.core.errors import InvalidValue

    if is_cuda and is_cpu:
        raise InvalidValue("An environment is for one kind of device; found --cuda and --cpu.")
    if is_cuda or is_cpu:
        return "cuda" if is_cuda else "cpu"
    found: Literal["cuda", "cpu"] = "cuda" if has_nvidia_gpu() else "cpu"
    say(
        f"this machine {'has' if found == 'cuda' else 'has no'} NVIDIA GPU that can be used: taking --{found}"
    )
    return found


def _tell(engine: str, done: "Installed", took_s: float) -> None:
    found = done.findings
    devices = ", ".join(found.devices) or "no GPU"
    torch = f", PyTorch {found.torch}" if found.torch else ""
    say(f"{engine} {found.version} imports under Python {found.python}{torch}")
    say(f"it would compute on {found.platform or 'what it does not say'}; {devices}")
    if found.problem:
        say(f"warning: {found.problem}")
    if found.platform == "cpu" and found.cuda:
        say("warning: it was installed for CUDA and finds no GPU here")
    say("already installed" if done.was_here else f"installed in {took_s:.0f} s")
