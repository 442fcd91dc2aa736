"""The load of this machine's devices: cached for display, live for decisions."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psutil

from ganglion.core.machine import CPU_INDEX, DeviceReading, Memory
from ganglion.registry.machine.background_reading import BackgroundReading
from ganglion.registry.machine.nvml import read_devices

_FRESH_S: Final = 5.0
_SHOWN_S: Final = 60.0
"""An older reading says nothing; it is left out while a driver does not answer."""
FIRST_S: Final = 0.5
"""How long a request may wait where there is no reading to show yet."""
_SAMPLE_S: Final = 0.1
"""Over which the processor's utilisation is measured."""
_CPU_SENSORS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")


class DeviceMonitor:
    """The cards, and the processor where no card can be used."""

    def __init__(
        self,
        read_memory: Callable[[], Memory],
        *,
        cpu_name: str,
        nvml: Any | None,
        can_accelerate: bool,
    ) -> None:
        self._read_memory = read_memory
        self._cpu_name = cpu_name
        self._nvml = nvml
        self._can_accelerate = can_accelerate
        self._watched = BackgroundReading(self.read, fresh_s=_FRESH_S, shown_s=_SHOWN_S)

    async def readings(self) -> tuple[DeviceReading, ...]:
        """The last ones, while new ones are taken elsewhere; empty while there are none to show."""
        with suppress(TimeoutError):
            return await self._watched.latest(FIRST_S)
        return ()

    def read(self) -> tuple[DeviceReading, ...]:
        """Read now; blocks for about a tenth of a second."""
        memory = self._read_memory()
        cards = read_devices(self._nvml, memory)
        if cards and self._can_accelerate:
            return cards
        return (*cards, _processor(self._cpu_name, memory))

    def cards(self) -> tuple[DeviceReading, ...]:
        """The accelerators as the driver lists them, whichever engine can use them; blocks on it."""
        return read_devices(self._nvml, self._read_memory())

    def free_video_bytes(self) -> tuple[int, ...] | None:
        """What is free on each card, now, or None where none can be used; blocks on the driver."""
        cards = read_devices(self._nvml, self._read_memory()) if self._can_accelerate else ()
        return tuple(card.memory_free_mb << 20 for card in cards) or None


def _processor(name: str, memory: Memory) -> DeviceReading:
    return DeviceReading(
        index=CPU_INDEX,
        name=name,
        memory_used_mb=(memory.total_bytes - memory.free_bytes) >> 20,
        memory_free_mb=memory.free_bytes >> 20,
        utilization_pct=float(psutil.cpu_percent(interval=_SAMPLE_S)),
        temperature_c=_temperature_c(),
    )


def _temperature_c() -> float | None:
    """The processor's temperature where the system has a sensor that is known to be its own."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    with suppress(OSError, RuntimeError):
        found = psutil.sensors_temperatures()
        for sensor in _CPU_SENSORS:
            for reading in found.get(sensor, ()):
                return float(reading.current)
    return None
