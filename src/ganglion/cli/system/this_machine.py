"""This machine for the server and the doctor: its devices, its memory and its engines."""

import asyncio
import os
from dataclasses import replace
from functools import cached_property

from ganglion import __version__
from ganglion.core.errors import EngineUnavailable
from ganglion.core.machine import DeviceReading, EngineFacts, Machine, MachineSource
from ganglion.engines.llama.native.probe import accelerators_among, probe
from ganglion.engines.resources import read_memory, usable_cores
from ganglion.engines.table import ENGINES, EngineName
from ganglion.registry.machine.background_reading import BackgroundReading
from ganglion.registry.machine.describe import (
    can_accelerate,
    describe,
    gpu_engine,
    native_engine,
    processor_name,
)
from ganglion.registry.machine.device_choice import visible_cards
from ganglion.registry.machine.devices import DeviceMonitor
from ganglion.registry.machine.nvml import load_nvml, survey


class ThisMachine:
    """The devices of this machine, each read when it is first needed."""

    @cached_property
    def devices(self) -> DeviceMonitor:
        """The monitor of the devices; made on first use, since it reads some files."""
        return DeviceMonitor(
            read_memory,
            cpu_name=processor_name(),
            nvml=load_nvml(),
            can_accelerate=can_accelerate(gpu_engine(installed_engines()), os.environ),
        )

    def source(self) -> MachineSource:
        """The source of what the server's endpoints show of the machine."""
        return MachineSource(BackgroundReading(describe_machine).latest, self._readings)

    def free_video_bytes(self, engine: EngineName) -> tuple[int, ...] | None:
        """What is free on each accelerator that an engine can use, now; None where there are none.

        A native library itself is asked, since it alone knows which devices it will use, of whatever kind;
        where its file says that it was built for processors, nobody is.
        """
        if ENGINES[engine].fills_gpu:
            return self.devices.free_video_bytes()
        native = native_engine(installed_engines())
        if native is None or native.accelerators == ():
            return None
        try:
            return tuple(device.free_bytes for device in accelerators_among(probe(None).devices)) or None
        except EngineUnavailable:
            return self.devices.free_video_bytes()

    def cards(self) -> tuple[DeviceReading, ...]:
        """The accelerators that engines started here may use, now."""
        return visible_cards(self.devices.cards(), os.environ)

    async def _readings(self) -> tuple[DeviceReading, ...]:
        devices = await asyncio.to_thread(lambda: self.devices)
        return await devices.readings()


def describe_machine() -> Machine:
    """Describe the machine as it is now."""
    return describe(
        engines=installed_engines(),
        memory=read_memory(),
        cores=usable_cores(),
        environment=os.environ,
        nvml=load_nvml(),
    )


def has_nvidia_gpu() -> bool:
    """Whether NVIDIA's driver shows a GPU here that is not hidden."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not is_hidden and bool(survey(load_nvml(), read_memory()).devices)


def installed_engines() -> tuple[EngineFacts, ...]:
    """The engines that can be used here, by name."""
    found = [(kind, kind.facts(name, __version__, os.environ)) for name, kind in sorted(ENGINES.items())]
    return tuple(replace(facts, layout=kind.layout) for kind, facts in found if facts is not None)
