"""Another Python on this machine: what it is, and whether it can import an engine."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ganglion.core.errors import EngineUnavailable, InvalidValue
from ganglion.engines.installing.receipt import Findings

_ASK_S: Final = 30.0
_IMPORT_S: Final = 600.0
"""A first import compiles thousands of modules, on a disk that may be slow."""
_QUESTION: Final = """
import importlib.util, json, platform, sys
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "machine": platform.machine(),
    "system": platform.system(),
    "base": sys.base_prefix,
    "has_venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
}))
"""


@dataclass(frozen=True, slots=True)
class PythonFacts:
    """A Python that an environment can be made with."""

    path: Path
    version: str
    machine: str
    system: str
    base: str
    has_venv: bool


def ask_python(path: Path) -> PythonFacts:
    """Start a Python and ask what it is; raises InvalidValue."""
    try:
        done = subprocess.run(
            [str(path), "-I", "-c", _QUESTION],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_ASK_S,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return PythonFacts(path, **answer)
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it did not answer as a Python does"
        raise InvalidValue(
            f"{path} is no Python that can be used: {reason}.",
            param="python",
            hint="Name an interpreter: --python /usr/bin/python3.11",
        ) from None


def import_engine(python: Path, program: str, *, wall_s: float = _IMPORT_S) -> Findings:
    """Import an engine in its own Python; raises EngineUnavailable with the reason it gives."""
    try:
        done = subprocess.run(
            [str(python), "-P", "-c", program],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=wall_s,
            env={
                name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")
            },
        )
    except OSError as error:
        raise EngineUnavailable(f"{python} cannot be started: {error.strerror}.") from error
    except subprocess.TimeoutExpired:
        raise EngineUnavailable(f"{python} did not import the engine within {wall_s:g} s.") from None
    try:
        return msgspec.json.decode(done.stdout.strip().rpartition(b"\n")[2], type=Findings)
    except msgspec.MsgspecError:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1][:300] if lines else f"it ended with {done.returncode}"
        raise EngineUnavailable(f"{python} cannot import the engine: {reason}.") from None
