"""NVIDIA's management library as values: missing or broken, it is a finding and no exception."""

import importlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ganglion.core.machine import Accelerator, Device, DeviceReading, Memory

_ANSWER_S: Final = 5.0
"""A wedged driver answers never; a card that sleeps takes about a second."""
_MOST_DEVICES: Final = 64


@dataclass(frozen=True, slots=True)
class GpuSurvey:
    """What the driver says is here."""

    accelerator: Accelerator | None = None
    devices: tuple[Device, ...] = ()
    problem: str | None = None
    """Why a driver that is here could not be asked."""


def load_nvml() -> Any | None:
    """The binding, which loads nothing native until it is asked something; None when it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def survey(nvml: Any | None, memory: Memory, *, answer_s: float = _ANSWER_S) -> GpuSurvey:
    """Ask the driver what is here, but not for ever; `memory` is the machine's, for cards that share it."""
    if nvml is None:
        return GpuSurvey()
    answers: list[GpuSurvey] = []
    asking = threading.Thread(target=lambda: answers.append(_survey(nvml, memory)), name="nvml", daemon=True)
    asking.start()
    asking.join(answer_s)
    return answers[0] if answers else GpuSurvey(problem=f"it did not answer within {answer_s:g} s")


def _survey(nvml: Any, memory: Memory) -> GpuSurvey:
    try:
        nvml.nvmlInit()
        runtime = nvml.nvmlSystemGetCudaDriverVersion_v2()
        accelerator = Accelerator(
            f"CUDA {runtime // 1000}.{runtime % 1000 // 10}", str(nvml.nvmlSystemGetDriverVersion())
        )
        devices = tuple(_device(nvml, index, handle, memory) for index, handle in _handles(nvml))
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return GpuSurvey()
        return GpuSurvey(problem=str(error))
    return GpuSurvey(accelerator, devices)


def read_devices(nvml: Any | None, memory: Memory) -> tuple[DeviceReading, ...]:
    """Every card as it is now; empty where none can be asked."""
    if nvml is None:
        return ()
    try:
        nvml.nvmlInit()
        return tuple(_reading(nvml, index, handle, memory) for index, handle in _handles(nvml))
    except nvml.NVMLError:
        return ()


def _handles(nvml: Any) -> Iterator[tuple[int, Any]]:
    for index in range(min(nvml.nvmlDeviceGetCount(), _MOST_DEVICES)):
        yield index, nvml.nvmlDeviceGetHandleByIndex(index)


def _device(nvml: Any, index: int, handle: Any, memory: Memory) -> Device:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    total_bytes = _memory(nvml, handle, memory).total_bytes
    return Device(index, _name(nvml, handle), total_bytes >> 20, f"{major}.{minor}")


def _reading(nvml: Any, index: int, handle: Any, memory: Memory) -> DeviceReading:
    found = _memory(nvml, handle, memory)
    return DeviceReading(
        index=index,
        name=_name(nvml, handle),
        memory_used_mb=(found.total_bytes - found.free_bytes) >> 20,
        memory_free_mb=found.free_bytes >> 20,
        utilization_pct=_with_timeout(nvml, lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        temperature_c=_with_timeout(
            nvml, lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        ),
    )


def _memory(nvml: Any, handle: Any, memory: Memory) -> Memory:
    """A card's own memory; one that has none, as on boards with a single memory, shares the machine's."""
    try:
        found = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return memory
    return Memory(int(found.total), int(found.free))


def _name(nvml: Any, handle: Any) -> str:
    return str(nvml.nvmlDeviceGetName(handle))


def _with_timeout(nvml: Any, ask: Callable[[], float]) -> float | None:
    """What a card tells of itself; not every card, nor every slice of one, tells everything."""
    try:
        return ask()
    except nvml.NVMLError:
        return None
