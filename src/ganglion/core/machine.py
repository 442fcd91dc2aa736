"""The machine that a node stands on: what it is, and how busy it is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

CPU_INDEX: Final = -1
"""The device index of the processor, which stands in the list only where no accelerator does."""

LibrarySource = Literal["bundled", "built", "GANGLION_LIBLLAMA"]
"""Where a native library comes from: the pinned wheel, `ganglion engines build`, or the operator."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that this process may take, a container's limits counted."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor."""

    model: str
    architecture: str
    cores: int
    """That this process may use."""
    flags: tuple[str, ...] = ()
    """The instruction sets that matter to inference."""


@dataclass(frozen=True, slots=True)
class Device:
    """Something that holds a model's weights and computes with them."""

    index: int
    name: str
    memory_total_mb: int
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The library that drives the devices beside the processor."""

    runtime: str
    """The newest one that the driver can serve, as in `CUDA 12.8`."""
    driver: str


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine that could be used here."""

    name: str
    version: str
    library: LibrarySource | None = None
    """Where its native library comes from; None for an engine without one."""
    accelerators: tuple[str, ...] | None = ()
    """What that library was built for beside the processor; None when its file does not say."""
    layout: tuple[str, ...] = ()
    """The fields of a DeviceLayout that it honours."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that does not change while the node runs."""

    hostname: str
    os: str
    kernel: str
    cpu: Cpu
    memory_total_mb: int
    devices: tuple[Device, ...]
    """The accelerators; where there is none, the processor."""
    engines: tuple[EngineFacts, ...]
    accelerator: Accelerator | None = None
    accelerator_unusable: str | None = None
    """Why an accelerator that seems to be here cannot be used, and what to do; None when nothing is wrong."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device at a moment."""

    index: int
    name: str
    memory_used_mb: int
    memory_free_mb: int
    utilization_pct: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class MachineSource:
    """A source of facts about the machine; neither call blocks the event loop."""

    describe: Callable[[], Awaitable[Machine]]
    readings: Callable[[], Awaitable[tuple[DeviceReading, ...]]]
