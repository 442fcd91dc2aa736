"""A description of this machine, for `/discovery` and `ganglion doctor`."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ganglion.core.machine import (
    CPU_INDEX,
    Accelerator,
    Cpu,
    Device,
    EngineFacts,
    Machine,
    Memory,
)
from ganglion.registry.machine import nvml as nvidia

_DISTRIBUTION: Final = "xllamacpp"
_FLAGS: Final[tuple[str, ...]] = (
    *("sse4_2", "avx", "avx2", "avx_vnni", "fma", "f16c", "bmi2", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "neon", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme"),
)
"""Beside these, every avx512 flag."""
_NVIDIA_VENDOR: Final = "0x10de"
_AMD_VENDOR: Final = "0x1002"
_DISPLAY_CLASSES: Final = ("0x0300", "0x0302")
"""PCI classes of graphics cards and of compute cards without a display."""


def describe(
    *,
    engines: tuple[EngineFacts, ...],
    memory: Memory,
    cores: int,
    environment: Mapping[str, str],
    nvml: Any | None,
    root: Path = Path("/"),
) -> Machine:
    """Look at everything once; takes a moment, and with a driver that does not answer some seconds."""
    cpu = read_cpu(root, cores)
    found = nvidia.survey(nvml, memory)
    unusable = why_unusable(found, gpu_engine(engines), environment, has_card=has_nvidia_card(root))
    devices = found.devices
    if not devices or unusable is not None:
        devices = (*devices, Device(CPU_INDEX, cpu.model, memory.total_bytes >> 20))
    return Machine(
        hostname=platform.node(),
        os=_os(root),
        kernel=platform.release(),
        cpu=cpu,
        memory_total_mb=memory.total_bytes >> 20,
        devices=devices,
        engines=engines,
        accelerator=found.accelerator,
        accelerator_unusable=unusable,
    )


def read_cpu(root: Path, cores: int) -> Cpu:
    """The processor, as far as the system describes it."""
    described = _cpuinfo(root)
    listed = (described.get("flags") or described.get("features") or "").split()
    present = set(listed)
    flags = [flag for flag in _FLAGS if flag in present]
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


def native_engine(engines: tuple[EngineFacts, ...]) -> EngineFacts | None:
    """The engine that runs models in a native library; None where none is installed."""
    return next((engine for engine in engines if engine.library is not None), None)


def gpu_engine(engines: tuple[EngineFacts, ...]) -> EngineFacts | None:
    """The engine that would use a card: one that was built for it, else the one with a native library."""
    native = native_engine(engines)
    if _is_built_for_cuda(native):
        return native
    return next((engine for engine in engines if "cuda" in (engine.accelerators or ())), native)


def can_accelerate(engine: EngineFacts | None, environment: Mapping[str, str]) -> bool:
    """Whether a card would be used if there is one; a library whose file does not say gets the benefit."""
    return not _hides_cards(environment) and _is_built_for_cuda(engine)


def why_unusable(
    found: nvidia.GpuSurvey,
    engine: EngineFacts | None,
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
    return None if _is_built_for_cuda(engine) else _not_built_for(found.accelerator, engine)


def _hides_cards(environment: Mapping[str, str]) -> bool:
    return environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def _is_built_for_cuda(engine: EngineFacts | None) -> bool:
    return engine is not None and (engine.accelerators is None or "cuda" in engine.accelerators)


def _not_built_for(driver: Accelerator | None, engine: EngineFacts | None) -> str:
    here = f"An NVIDIA driver{f' {driver.driver}' if driver else ''} is here; "
    if engine is None:
        return f"{here}llama.cpp is not installed. Install it with: pip install {_DISTRIBUTION}."
    if engine.library == "bundled":
        return (
            f"{here}the installed llama.cpp was built for the CPU only. Build it for the GPU "
            "(ganglion engines build llama --cuda), or point GANGLION_LIBLLAMA at a CUDA build of the same "
            f"llama.cpp ({_DISTRIBUTION} {engine.version})."
        )
    if engine.library == "built":
        return f"{here}the llama.cpp that was built here has no CUDA. ganglion engines build llama --cuda"
    return f"{here}the library of GANGLION_LIBLLAMA was built without CUDA. Build it with -DGGML_CUDA=ON."


def has_nvidia_card(root: Path) -> bool:
    """Whether a card of NVIDIA's is on the bus, with a driver or without."""
    return _has_card(root, _NVIDIA_VENDOR, _DISPLAY_CLASSES)


def has_amd_card(root: Path) -> bool:
    """Whether a card of AMD's is on the bus, with a driver or without."""
    return _has_card(root, _AMD_VENDOR, (*_DISPLAY_CLASSES, "0x0380"))


def _has_card(root: Path, vendor: str, classes: tuple[str, ...]) -> bool:
    try:
        cards = list((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return False
    return any(
        _text(card / "vendor") == vendor and _text(card / "class").startswith(classes) for card in cards
    )


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
