"""Whether the native library works on this machine, found out in a process that may die of it."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from ganglion.core.errors import EngineUnavailable

CHILD: Final = "ganglion.engines.llama.native.probe_child"
TIMEOUT_S: Final = 30.0
"""Loading takes well under a second; a cold disk has to deliver a hundred megabytes first."""


class LibraryReport(msgspec.Struct, frozen=True, tag="works"):
    """The library loaded, and every guard of the binding let it pass."""

    path: str
    system_info: str
    """The instruction sets and devices that it says it uses."""
    can_offload: bool
    """Whether layers can be put on an accelerator here."""
    vocabulary: int | None
    """Tokens in the vocabulary of the model that was looked at."""


class LibraryRefusal(msgspec.Struct, frozen=True, tag="refused"):
    """The library, or the model, was refused with a reason."""

    message: str
    hint: str | None


def probe(model: Path | None, *, timeout_s: float = TIMEOUT_S) -> LibraryReport:
    """Load the library, and the vocabulary of a model; raises EngineUnavailable with the reason."""
    command = [sys.executable, "-m", CHILD, *([str(model)] if model else [])]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise EngineUnavailable(f"llama.cpp did not load within {timeout_s:g} s.") from None
    try:
        report = msgspec.json.decode(done.stdout, type=LibraryReport | LibraryRefusal)
    except msgspec.DecodeError:
        raise EngineUnavailable(
            f"The process that loaded llama.cpp ended with {_ending(done)}.",
            hint="The library may be built for another processor: reinstall it, or point "
            "GANGLION_LIBLLAMA at one that was built here.",
        ) from None
    if isinstance(report, LibraryRefusal):
        raise EngineUnavailable(report.message, hint=report.hint)
    return report


def _ending(done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"status {done.returncode}{f': {lines[-1][:200]}' if lines else ''}"
