"""This machine for the server and the doctor: its devices, its memory and its engines."""

import asyncio
import os
from functools import cached_property

from ganglion import __version__
from ganglion.core.errors import EngineUnavailable
from ganglion.core.machine import DeviceReading, EngineFacts, Machine, MachineSource
from ganglion.engines.llama.native.probe import probe
from ganglion.engines.resources import read_memory, usable_cores
from ganglion.engines.table import ENGINES
from ganglion.registry.machine.background_reading import BackgroundReading
from ganglion.registry.machine.describe import can_accelerate, describe, native_engine, processor_name
from ganglion.registry.machine.devices import DeviceMonitor
from ganglion.registry.machine.nvml import load_nvml


class ThisMachine:
    """The devices of this machine, each read when it is first needed."""

    @cached_property
    def devices(self) -> DeviceMonitor:
        """The monitor of the devices; made on first use, since it reads some files."""
        return DeviceMonitor(
            read_memory,
            cpu_name=processor_name(),
            nvml=load_nvml(),
            can_accelerate=can_accelerate(native_engine(installed_engines()), os.environ),
        )

    def source(self) -> MachineSource:
        """The source of what the server's endpoints show of the machine."""
        return MachineSource(BackgroundReading(describe_machine).latest, self._readings)

    def free_video_bytes(self) -> tuple[int, ...] | None:
        """What is free on each accelerator that can be used, now; None where there are none.

        The library itself is asked, since it alone knows which devices it will use, of whatever kind; where
        its file says that it was built for processors, nobody is.
        """
        engine = native_engine(installed_engines())
        if engine is None or engine.accelerators == ():
            return None
        try:
            return tuple(device.free_bytes for device in probe(None).devices) or None
        except EngineUnavailable:
            return self.devices.free_video_bytes()

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


def installed_engines() -> tuple[EngineFacts, ...]:
    """The engines that can be used here, by name."""
    found = [kind.facts(name, __version__, os.environ) for name, kind in sorted(ENGINES.items())]
    return tuple(facts for facts in found if facts is not None)
