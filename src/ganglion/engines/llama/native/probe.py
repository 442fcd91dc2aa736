"""Finds out whether the native library works on this machine, in a process that may die of it."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, Literal

import msgspec

from ganglion.core.errors import EngineUnavailable
from ganglion.engines.child import ChildDied, ChildLimits, describe_exit, spawn

CHILD: Final = "ganglion.engines.llama.native.probe_child"
_TIMEOUT_S: Final = 30.0
"""Loading takes well under a second; a cold disk has to deliver a hundred megabytes first."""


DeviceKind = Literal["cpu", "gpu", "igpu", "accel", "meta", "unknown"]


class LibraryDevice(msgspec.Struct, frozen=True):
    """Something that the library can compute on."""

    name: str
    """As in CUDA0, Vulkan0 or Metal."""
    description: str
    kind: DeviceKind
    """As the library sorts them: `accel` helps the processor, `igpu` shares its memory."""
    free_bytes: int = 0
    total_bytes: int = 0


def accelerators_among(devices: Iterable[LibraryDevice]) -> tuple[LibraryDevice, ...]:
    """Those that take layers, in their order; integrated ones only without others."""
    found = tuple(devices)
    dedicated = tuple(device for device in found if device.kind == "gpu")
    return dedicated or tuple(device for device in found if device.kind == "igpu")


class LibraryQuestion(msgspec.Struct, frozen=True):
    """What the child is asked to look at; None for the library that a worker would open, and no model."""

    library: str | None = None
    model: str | None = None


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


class LibraryRefusal(msgspec.Struct, frozen=True, tag="refused"):
    """The library, or the model, was refused with a reason."""

    message: str
    hint: str | None


def probe(model: Path | None, *, library: Path | None = None, timeout_s: float = _TIMEOUT_S) -> LibraryReport:
    """Load a library, and the vocabulary of a model; raises EngineUnavailable with the reason.

    Without a path it is the library that a worker would open.
    """
    question = LibraryQuestion(
        None if library is None else str(library), None if model is None else str(model)
    )
    limits = ChildLimits(timeout_s, start_s=timeout_s, has_environment=True)
    with TemporaryFile() as stderr, ExitStack() as opened:
        try:
            child = spawn(CHILD, limits=limits, stderr=stderr)
            opened.callback(child.close)
            answer = child.ask(msgspec.json.encode(question))
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
