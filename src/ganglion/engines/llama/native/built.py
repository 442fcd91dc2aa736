"""The llama.cpp that `ganglion engines build` made on this machine, as its receipt describes it.

Law: it is used while it was built from the version that the binding is written for, and its file is there.
Any other build is named with the reason, and the bundled library is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ganglion.core.home import engine_folder
from ganglion.engines.installing.receipt import folder_behind, read_receipt

PINNED_VERSION: Final = "2026.10.11549"
"""The version of xllamacpp whose llama.cpp the binding is written for, as pyproject.toml pins it."""
SOURCE_SHA256: Final = "c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b"
"""Of that version's source package."""
LIBRARY_NAMES: Final = ("libllama.so", "libllama.dylib")
IGNORE_VARIABLE: Final = "GANGLION_IGNORE_BUILT_LLAMA"
"""Set for our own workers where a build turned out to be broken: all of them then use the bundled library."""


class BuildReceipt(msgspec.Struct, frozen=True):
    """A build that was finished, and that the binding's guard let pass."""

    version: str
    backend: str
    library: str
    """The name of its file in the folder."""
    options: tuple[str, ...] = ()
    """What CMake was told beside the defaults of the backend."""
    compiler: str = ""
    devices: tuple[str, ...] = ()
    """Those that it found when it was tried."""
    source: str | None = None
    """The folder or file that it was built from, where that was not the pinned package."""


@dataclass(frozen=True, slots=True)
class BuiltLibrary:
    """A build in its place."""

    path: Path
    receipt: BuildReceipt
    problem: str | None
    """Why it is not used; None for one that is."""


def built_library(environment: Mapping[str, str]) -> BuiltLibrary | None:
    """The build of this machine, usable or not; None where there is none."""
    link = engine_folder("llama", environment)
    folder = folder_behind(link)
    if folder is None:
        return None
    receipt = read_receipt(folder, BuildReceipt)
    if receipt is None:
        nothing = BuildReceipt(version="unknown", backend="unknown", library=LIBRARY_NAMES[0])
        return BuiltLibrary(folder / nothing.library, nothing, f"{link} holds no finished build")
    path = folder / receipt.library
    return BuiltLibrary(path, receipt, _problem(path, receipt))


def usable_build(environment: Mapping[str, str]) -> BuiltLibrary | None:
    """The build that is used unless GANGLION_LIBLLAMA names another library; None where there is none."""
    if environment.get(IGNORE_VARIABLE):
        return None
    found = built_library(environment)
    return None if found is None or found.problem is not None else found


def rebuild_command(receipt: BuildReceipt) -> str:
    """What to type to build it again."""
    backend = receipt.backend if receipt.backend != "unknown" else "cpu"
    return f"ganglion engines build llama --{backend}"


def _problem(path: Path, receipt: BuildReceipt) -> str | None:
    if receipt.version != PINNED_VERSION:
        return f"it was built from {receipt.version}, and this Ganglion needs {PINNED_VERSION}"
    return None if path.is_file() else f"{path} is missing"
