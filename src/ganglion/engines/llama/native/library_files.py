"""The installed llama.cpp library as its files describe it, without loading it."""

import struct
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, Final

from ganglion.core.machine import EngineFacts
from ganglion.engines.llama.native.built import BuiltLibrary, usable_build

_DISTRIBUTION: Final = "xllamacpp"
_RUNTIMES: Final = {
    "cuda": ("libcuda.", "libcudart", "libcublas", "libggml-cuda"),
    "rocm": ("libamdhip64", "librocblas", "libhipblas", "libggml-hip"),
    "vulkan": ("libvulkan", "libggml-vulkan"),
    "sycl": ("libsycl", "libggml-sycl"),
}
"""The libraries that a build of each kind needs."""
_MOST_LIBRARIES: Final = 64
_MOST_ENTRIES: Final = 4096
"""Of a table in the file; real ones have dozens."""

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5


def accelerators_of(library: Path) -> tuple[str, ...] | None:
    """Names out of RUNTIMES; None when the file is not of a kind that this can read."""
    needed = needed_by(library)
    if needed is None:
        return None
    seen: set[str] = set()
    waiting = list(needed)
    while waiting and len(seen) < _MOST_LIBRARIES:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            # A build in parts keeps its accelerator in a file of its own beside it.
            waiting += needed_by(library.parent / Path(name).name) or ()
    return tuple(
        runtime for runtime, signs in _RUNTIMES.items() if any(name.startswith(signs) for name in seen)
    )


def needed_by(library: Path) -> tuple[str, ...] | None:
    """The libraries that a 64-bit little-endian ELF file names as needed; None for any other file."""
    try:
        with library.open("rb") as file:
            return tuple(_needed(file))
    except (OSError, ValueError, struct.error, OverflowError):
        return None


def _needed(file: BinaryIO) -> Iterator[str]:
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    table_offset, entry_size, entries = (
        *struct.unpack_from("<Q", header, 32),
        *struct.unpack_from("<HH", header, 54),
    )
    loads: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int] | None = None
    for number in range(min(entries, _MOST_ENTRIES)):
        file.seek(table_offset + number * entry_size)
        kind, _, offset, address, _, size, _, _ = struct.unpack("<IIQQQQQQ", file.read(56))
        if kind == _PT_LOAD:
            loads.append((address, offset, size))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, size)
    if dynamic is None:
        return
    yield from _names(file, dynamic, loads)


def _names(file: BinaryIO, dynamic: tuple[int, int], loads: list[tuple[int, int, int]]) -> Iterator[str]:
    file.seek(dynamic[0])
    table = file.read(min(dynamic[1], 16 * _MOST_ENTRIES))
    tags = list(struct.iter_unpack("<qQ", table[: len(table) // 16 * 16]))
    strings = next((value for tag, value in tags if tag == _DT_STRTAB), None)
    offsets = [
        strings - address + offset
        for address, offset, size in loads
        if strings is not None and address <= strings < address + size
    ]
    if not offsets:
        return
    for tag, value in tags:
        if tag == _DT_NEEDED:
            file.seek(offsets[0] + value)
            yield file.read(256).partition(b"\0")[0].decode("utf-8", "replace")


def describe(name: str, version: str, environment: Mapping[str, str]) -> EngineFacts | None:
    """The engine of this name as its library's files describe it; None where none is installed."""
    override = environment.get("GANGLION_LIBLLAMA")
    built = usable_build(environment)
    bundled = _bundled()
    if override:
        # The binding only takes a build of the version that it is pinned to, and checks that when it loads.
        found = "unknown" if bundled is None else bundled[0]
        return EngineFacts(name, found, "GANGLION_LIBLLAMA", accelerators_of(Path(override)))
    if built is not None:
        return EngineFacts(name, built.receipt.version, "built", _built_for(built))
    if bundled is None:
        return None
    found, module = bundled
    return EngineFacts(name, found, "bundled", None if module is None else accelerators_of(module))


def bundled_version() -> str | None:
    """The version of the pinned wheel; None where it is not installed."""
    bundled = _bundled()
    return None if bundled is None else bundled[0]


def _bundled() -> tuple[str, Path | None] | None:
    """The version and the module of the pinned wheel; None where it is not installed."""
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None
    modules = [
        Path(str(file.locate()))
        for file in distribution.files or ()
        if file.name.startswith(_DISTRIBUTION) and file.suffix == ".so"
    ]
    return distribution.version, modules[0] if modules else None


def _built_for(built: BuiltLibrary) -> tuple[str, ...]:
    """A build says itself what it is for, in our words for it."""
    runtime = {"hip": "rocm"}.get(built.receipt.backend, built.receipt.backend)
    return () if runtime == "cpu" else (runtime,)
