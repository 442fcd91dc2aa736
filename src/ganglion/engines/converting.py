"""Model files that an engine reads, made once from those that it does not: where, and by which Python.

A converter needs packages that no node needs (torch, transformers), so it runs under another Python: one
that the operator names, else that of an engine that was installed here and has them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ganglion.engines.settings import EngineSettings
from ganglion.engines.table import ENGINES

_NEEDED: Final = ("torch", "transformers")


def converter_python(settings: EngineSettings, environment: Mapping[str, str]) -> Path | None:
    """The Python that can convert checkpoints; None where there is none."""
    if settings.converter_python is not None:
        return Path(settings.converter_python).expanduser()
    pythons = (kind.python_of(settings, environment) for kind in ENGINES.values())
    return next((python for python in pythons if python is not None and _has_packages(python)), None)


def _has_packages(python: Path) -> bool:
    """By the folders of its environment: asking it would take seconds."""
    found = python.parent.parent.glob("lib/python3*/site-packages")
    return any(all((packages / name).is_dir() for name in _NEEDED) for packages in found)
