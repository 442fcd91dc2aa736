"""This machine, put together: what reads it, and what the server asks about it."""

import os
from dataclasses import dataclass

from ganglion import __version__
from ganglion.core.machine import Machine, MachineSource
from ganglion.engines.llama.memory import read_memory, usable_cores
from ganglion.registry.devices import Devices
from ganglion.registry.machine import can_accelerate, describe, find_library, processor_name
from ganglion.registry.nvml import load_nvml
from ganglion.registry.watched import Watched


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """What the server tells of the machine, and the devices for whoever must know what is free."""

    source: MachineSource
    devices: Devices


def watch_machine() -> ThisMachine:
    """Ready to be asked; a few small files are read, no driver is asked yet."""
    devices = Devices(
        read_memory,
        cpu_name=processor_name(),
        nvml=load_nvml(),
        can_accelerate=can_accelerate(find_library(os.environ), os.environ),
    )
    described = Watched(describe_machine)
    return ThisMachine(MachineSource(described.latest, devices.readings), devices)


def describe_machine() -> Machine:
    """Look at the machine now."""
    return describe(
        version=__version__,
        memory=read_memory(),
        cores=usable_cores(),
        environment=os.environ,
        nvml=load_nvml(),
    )
