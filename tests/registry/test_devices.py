"""Readings of devices: cached, taken elsewhere, and live where something must be decided."""

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from ganglion.core.machine import Memory
from ganglion.registry.machine import devices as subject
from ganglion.registry.machine.background_reading import BackgroundReading
from ganglion.registry.machine.devices import DeviceMonitor
from ganglion.registry.machine.nvml import load_nvml, read_devices, survey

MIB = 2**20
MEMORY = Memory(4000 * MIB, 1000 * MIB)


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Driver:
    """The binding's functions around two cards; the second does not tell everything."""

    NVMLError = NvmlError
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, fails_with: int | None = None, hangs: threading.Event | None = None) -> None:
        self._fails_with = fails_with
        self.hangs = hangs or threading.Event()
        self._does_hang = hangs is not None

    def nvmlInit(self) -> None:  # noqa: N802
        if self._does_hang:
            self.hangs.wait(60)
        if self._fails_with is not None:
            raise NvmlError(self._fails_with)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.86.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 12080

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return f"card {handle}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return 9, handle

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if handle == 1:
            raise NvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=100 * MIB, free=30 * MIB, used=70 * MIB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if handle == 1:
            raise NvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=42)

    def nvmlDeviceGetTemperature(self, handle: int, _: int) -> int:  # noqa: N802
        return 55


def test_the_driver_is_asked_for_its_cards() -> None:
    found = survey(Driver(), MEMORY)
    assert found.accelerator is not None
    assert (found.accelerator.runtime, found.accelerator.driver) == ("CUDA 12.8", "570.86.15")
    assert [(each.index, each.memory_total_mb, each.compute_capability) for each in found.devices] == [
        (0, 100, "9.0"),
        (1, 4000, "9.1"),
    ]


def test_what_a_card_does_not_tell_is_unknown_or_the_machines() -> None:
    first, second = read_devices(Driver(), MEMORY)
    assert (first.memory_used_mb, first.memory_free_mb, first.utilization_pct, first.temperature_c) == (
        70,
        30,
        42.0,
        55.0,
    )
    assert (second.memory_used_mb, second.memory_free_mb, second.utilization_pct) == (3000, 1000, None)


def test_a_driver_that_is_not_there_is_no_problem_and_one_that_fails_is() -> None:
    assert survey(None, MEMORY).problem is None
    assert survey(Driver(fails_with=12), MEMORY).problem is None
    assert survey(Driver(fails_with=18), MEMORY).problem == "error 18"
    hanging = Driver(hangs=threading.Event())
    assert "within 0.05 s" in str(survey(hanging, MEMORY, answer_s=0.05).problem)
    hanging.hangs.set()
    assert read_devices(Driver(fails_with=18), MEMORY) == ()


def test_the_real_binding_can_be_asked_here_whatever_the_machine_has() -> None:
    nvml = load_nvml()
    assert nvml is not None, "nvidia-ml-py is a dependency"
    found = survey(nvml, MEMORY)
    assert len(read_devices(nvml, MEMORY)) == len(found.devices)


@pytest.mark.parametrize(
    ("nvml", "can_accelerate", "indexes"),
    [(None, False, [-1]), (Driver(), True, [0, 1]), (Driver(), False, [0, 1, -1])],
)
async def test_the_processor_is_listed_where_no_card_can_be_used(nvml, can_accelerate, indexes) -> None:
    devices = DeviceMonitor(lambda: MEMORY, cpu_name="A Processor", nvml=nvml, can_accelerate=can_accelerate)
    readings = await devices.readings()
    assert [reading.index for reading in readings] == indexes
    if indexes[-1] == -1:
        processor = readings[-1]
        assert (processor.name, processor.memory_used_mb, processor.memory_free_mb) == (
            "A Processor",
            3000,
            1000,
        )
        assert 0 <= processor.utilization_pct <= 100


def test_what_is_free_is_read_now() -> None:
    devices = DeviceMonitor(lambda: MEMORY, cpu_name="x", nvml=Driver(), can_accelerate=True)
    assert devices.free_video_bytes() == tuple(card << 20 for card in (30, 1000))


async def test_a_driver_that_hangs_holds_up_no_request(monkeypatch) -> None:
    monkeypatch.setattr(subject, "FIRST_S", 0.05)
    driver = Driver(hangs=threading.Event())
    devices = DeviceMonitor(lambda: MEMORY, cpu_name="x", nvml=driver, can_accelerate=True)
    assert await devices.readings() == (), "while the driver still hangs"
    driver.hangs.set()


async def test_a_reading_is_shown_while_the_next_one_is_taken() -> None:
    proceed = threading.Event()
    proceed.set()
    numbers = iter(range(100))

    def take() -> int:
        assert proceed.wait(5)
        return next(numbers)

    watched = BackgroundReading(take, fresh_s=0.0)
    assert await watched.latest() == 0
    proceed.clear()
    assert [await watched.latest() for _ in range(20)] == [0] * 20
    proceed.set()
    async with asyncio.timeout(5):
        while await watched.latest() == 0:  # noqa: ASYNC110 - the thread that reads has no event for it
            await asyncio.sleep(0.001)


async def test_a_fresh_reading_is_not_taken_again_and_all_who_wait_share_one() -> None:
    taken = []

    def take() -> int:
        time.sleep(0.02)
        taken.append(1)
        return len(taken)

    watched = BackgroundReading(take, fresh_s=60)
    assert await asyncio.gather(*(watched.latest() for _ in range(10))) == [1] * 10
    assert await watched.latest() == 1
    assert len(taken) == 1


async def test_a_reading_that_is_too_old_to_show_is_waited_for() -> None:
    numbers = iter(range(100))
    watched = BackgroundReading(lambda: next(numbers), fresh_s=0.0, shown_s=0.01)
    assert await watched.latest() == 0
    await asyncio.sleep(0.02)
    assert await watched.latest() == 1


async def test_a_failed_reading_is_told_to_who_waits_and_tried_again() -> None:
    answers: Iterator[ValueError | int] = iter([ValueError("broken"), 7])

    def take() -> int:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    watched = BackgroundReading(take)
    with pytest.raises(ValueError, match="broken"):
        await watched.latest()
    assert await watched.latest() == 7
