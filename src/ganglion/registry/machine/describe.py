"""What this machine is: everything that `/discovery` tells and `ganglion doctor` judges."""

import platform
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, Final

from ganglion.core.machine import (
    CPU_INDEX,
    Accelerator,
    Cpu,
    Device,
    EngineFacts,
    LibrarySource,
    Machine,
    Memory,
)
from ganglion.registry.machine import nvml as nvidia

RUNTIMES: Final = {
    "cuda": ("libcuda.", "libcudart", "libcublas", "libggml-cuda"),
    "rocm": ("libamdhip64", "librocblas", "libhipblas", "libggml-hip"),
    "vulkan": ("libvulkan", "libggml-vulkan"),
    "sycl": ("libsycl", "libggml-sycl"),
}
"""What a library of each kind cannot start without."""
MOST_LIBRARIES: Final = 64
MOST_ENTRIES: Final = 4096
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
    while waiting and len(seen) < MOST_LIBRARIES:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            # A build in parts keeps its accelerator in a file of its own beside it.
            waiting += needed_by(library.parent / Path(name).name) or ()
    return tuple(
        runtime for runtime, signs in RUNTIMES.items() if any(name.startswith(signs) for name in seen)
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
    for number in range(min(entries, MOST_ENTRIES)):
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
    table = file.read(min(dynamic[1], 16 * MOST_ENTRIES))
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


DISTRIBUTION: Final = "xllamacpp"
FLAGS: Final[tuple[str, ...]] = (
    *("sse4_2", "avx", "avx2", "avx_vnni", "fma", "f16c", "bmi2", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "neon", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme"),
)
"""Beside these, every avx512 flag."""
NVIDIA_VENDOR: Final = "0x10de"
DISPLAY_CLASSES: Final = ("0x0300", "0x0302")
"""PCI classes of graphics cards and of compute cards without a display."""


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """The llama.cpp that a worker would load."""

    version: str
    source: LibrarySource
    accelerators: tuple[str, ...] | None
    """What it was built for beside the processor; None when its file does not say."""


def describe(
    *,
    version: str,
    memory: Memory,
    cores: int,
    environment: Mapping[str, str],
    nvml: Any | None,
    root: Path = Path("/"),
) -> Machine:
    """Look at everything once; takes a moment, and with a driver that does not answer some seconds."""
    cpu = read_cpu(root, cores)
    library = find_library(environment)
    found = nvidia.survey(nvml, memory)
    unusable = why_unusable(found, library, environment, has_card=has_nvidia_card(root))
    devices = found.devices
    if not devices or unusable is not None:
        devices = (*devices, Device(CPU_INDEX, cpu.model, memory.total_bytes >> 20))
    llama = () if library is None else (_llama(library),)
    return Machine(
        hostname=platform.node(),
        os=_os(root),
        kernel=platform.release(),
        cpu=cpu,
        memory_total_mb=memory.total_bytes >> 20,
        devices=devices,
        engines=(EngineFacts("echo", version), *llama),
        accelerator=found.accelerator,
        accelerator_unusable=unusable,
    )


def read_cpu(root: Path, cores: int) -> Cpu:
    """The processor, as far as the system describes it."""
    described = _cpuinfo(root)
    listed = (described.get("flags") or described.get("features") or "").split()
    present = set(listed)
    flags = [flag for flag in FLAGS if flag in present]
    flags += [flag for flag in listed if flag.startswith("avx512")]
    return Cpu(processor_name(root), platform.machine(), cores, tuple(flags))


def processor_name(root: Path = Path("/")) -> str:
    """What the processor is called."""
    described = _cpuinfo(root)
    named = described.get("model name") or described.get("hardware")
    return named or platform.processor() or platform.machine()


def _cpuinfo(root: Path) -> dict[str, str]:
    described: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        described.setdefault(key.strip().lower(), value.strip())
    return described


def find_library(environment: Mapping[str, str]) -> NativeLibrary | None:
    """The library as its files describe it; it is not loaded."""
    override = environment.get("GANGLION_LIBLLAMA")
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        if not override:
            return None
        return NativeLibrary("unknown", "GANGLION_LIBLLAMA", accelerators_of(Path(override)))
    if override:
        # The binding only takes a build of the version that it is pinned to, and checks that when it loads.
        return NativeLibrary(distribution.version, "GANGLION_LIBLLAMA", accelerators_of(Path(override)))
    modules = [
        Path(str(file.locate()))
        for file in distribution.files or ()
        if file.name.startswith(DISTRIBUTION) and file.suffix == ".so"
    ]
    return NativeLibrary(distribution.version, "bundled", accelerators_of(modules[0]) if modules else None)


def can_accelerate(library: NativeLibrary | None, environment: Mapping[str, str]) -> bool:
    """Whether a card would be used if there is one; a library whose file does not say gets the benefit."""
    return not _hides_cards(environment) and _is_built_for_cuda(library)


def why_unusable(
    found: nvidia.GpuSurvey,
    library: NativeLibrary | None,
    environment: Mapping[str, str],
    *,
    has_card: bool,
) -> str | None:
    """Why an accelerator that seems to be here does no work, and what to do; None when nothing is wrong."""
    if found.problem is not None:
        return (
            f"An NVIDIA driver is here, and it cannot be asked: {found.problem}. "
            "nvidia-smi should say the same; load the driver that belongs to its library, or reboot."
        )
    if not found.devices:
        if not has_card:
            return None
        return (
            "An NVIDIA card is on the bus, and no driver for it is here. Install NVIDIA's driver; a "
            "container must be started with its devices (docker run --gpus all)."
        )
    if _hides_cards(environment):
        return "CUDA_VISIBLE_DEVICES hides every card. Unset it, or list the cards that may be used."
    return None if _is_built_for_cuda(library) else _not_built_for(found.accelerator, library)


def _hides_cards(environment: Mapping[str, str]) -> bool:
    return environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def _is_built_for_cuda(library: NativeLibrary | None) -> bool:
    return library is not None and (library.accelerators is None or "cuda" in library.accelerators)


def _not_built_for(driver: Accelerator | None, library: NativeLibrary | None) -> str:
    here = f"An NVIDIA driver{f' {driver.driver}' if driver else ''} is here; "
    if library is None:
        return f"{here}llama.cpp is not installed. Install it with: pip install {DISTRIBUTION}."
    if library.source == "bundled":
        return (
            f"{here}the installed llama.cpp was built for the CPU only. Point GANGLION_LIBLLAMA at the "
            f"libllama.so of a CUDA build of the same llama.cpp ({DISTRIBUTION} {library.version})."
        )
    return f"{here}the library of GANGLION_LIBLLAMA was built without CUDA. Build it with -DGGML_CUDA=ON."


def has_nvidia_card(root: Path) -> bool:
    """Whether a card is on the bus, with a driver or without."""
    try:
        cards = list((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return False
    return any(
        _text(card / "vendor") == NVIDIA_VENDOR and _text(card / "class").startswith(DISPLAY_CLASSES)
        for card in cards
    )


def _llama(library: NativeLibrary) -> EngineFacts:
    return EngineFacts("llama", library.version, library.source, library.accelerators)


def _os(root: Path) -> str:
    for line in _text(root / "etc/os-release").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip("\"'")
    return f"{platform.system()} {platform.mac_ver()[0]}".strip()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
