"""Finds out whether the native library works on this machine, in a process that may die of it."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

import msgspec

from ganglion.core.errors import EngineUnavailable
from ganglion.engines.child import ChildDied, ChildLimits, describe_exit, spawn

CHILD: Final = "ganglion.engines.llama.native.probe_child"
_TIMEOUT_S: Final = 30.0
"""Loading takes well under a second; a cold disk has to deliver a hundred megabytes first."""


class LibraryDevice(msgspec.Struct, frozen=True):
    """A device beside the processor, as the library names it."""

    name: str
    """As in CUDA0, Vulkan0 or Metal."""
    description: str
    free_bytes: int
    total_bytes: int


class LibraryReport(msgspec.Struct, frozen=True, tag="works"):
    """The library loaded, and every guard of the binding let it pass."""

    path: str
    system_info: str
    """The instruction sets and devices that it says it uses."""
    can_offload: bool
    """Whether layers can be put on an accelerator here."""
    vocabulary: int | None
    """Tokens in the vocabulary of the model that was looked at."""
    devices: tuple[LibraryDevice, ...] = ()
    """The accelerators, in the order in which layers are divided among them."""


class LibraryRefusal(msgspec.Struct, frozen=True, tag="refused"):
    """The library, or the model, was refused with a reason."""

    message: str
    hint: str | None


def probe(model: Path | None, *, timeout_s: float = _TIMEOUT_S) -> LibraryReport:
    """Load the library, and the vocabulary of a model; raises EngineUnavailable with the reason."""
    limits = ChildLimits(timeout_s, start_s=timeout_s, has_environment=True)
    with TemporaryFile() as stderr, ExitStack() as opened:
        try:
            child = spawn(CHILD, limits=limits, stderr=stderr)
            opened.callback(child.close)
            answer = child.ask(str(model or "").encode())
        except TimeoutError:
            raise _late(timeout_s) from None
        except ChildDied as death:
            if death.code is None:
                raise _late(timeout_s) from None
            raise EngineUnavailable(
                f"The process that loaded llama.cpp {describe_exit(death.code)}{_last_line(stderr)}.",
                hint="The library may be built for another processor: reinstall it, or point "
                "GANGLION_LIBLLAMA at one that was built here.",
            ) from None
    report = msgspec.json.decode(answer, type=LibraryReport | LibraryRefusal)
    if isinstance(report, LibraryRefusal):
        raise EngineUnavailable(report.message, hint=report.hint)
    return report


def _late(timeout_s: float) -> EngineUnavailable:
    return EngineUnavailable(f"llama.cpp did not load within {timeout_s:g} s.")


def _last_line(stderr: IO[bytes]) -> str:
    stderr.seek(0)
    lines = stderr.read().decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""
