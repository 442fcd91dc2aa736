"""`/health` and `/discovery` over a real socket."""

import threading
from collections.abc import AsyncGenerator

from ganglion.cli.system.this_machine import ThisMachine
from ganglion.core.engine import Activation, LoadOptions, LoadProgress
from ganglion.core.machine import MachineSource, Memory
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.registry.machine.devices import DeviceMonitor

KEYS = {"x-api-key": "secret"}


class Warming(EchoEngine):
    """An engine whose models come and go, and that gives an account of them."""

    async def load(self, name: str, options: LoadOptions) -> AsyncGenerator[LoadProgress, None]:
        yield LoadProgress(name, "loaded")

    async def unload(self, name: str, *, is_forced: bool) -> None:
        pass

    def activation(self) -> Activation:
        return Activation(pending=("later",), in_progress="now", failed=(("never", "a bad file"),))


async def test_discovery_describes_this_machine(serving) -> None:
    async with serving(machine=ThisMachine().source()) as served:
        found = (await served.http.get("/discovery")).json()
        again = (await served.http.get("/discovery")).json()
    assert found == again
    assert found["cpu"]["cores"] >= 1
    assert found["max_context"] == served.engine.models()[0].context_length
    assert {"echo", "llama"} <= {engine["name"] for engine in found["engines"]}
    assert found["devices"]
    if found["accelerator"] is None:
        assert [device["index"] for device in found["devices"]] == [-1]


async def test_discovery_and_health_need_a_key_once_there_is_one(serving) -> None:
    async with serving(machine=ThisMachine().source(), api_keys=("secret",)) as served:
        for path in ("/discovery", "/health"):
            assert (await served.http.get(path)).status_code == 401
            assert (await served.http.get(path, headers=KEYS)).status_code == 200


async def test_health_reads_the_devices_once_in_five_seconds_and_never_on_the_event_loop(serving) -> None:
    readers = []

    def read_memory() -> Memory:
        readers.append(threading.current_thread())
        return Memory(4 * 2**30, 2**30)

    devices = DeviceMonitor(read_memory, cpu_name="A Processor", nvml=None, can_accelerate=False)
    source = MachineSource(ThisMachine().source().describe, devices.readings)
    async with serving(machine=source) as served:
        answers = [(await served.http.get("/health")).json()["devices"] for _ in range(20)]
    assert answers == [answers[0]] * 20
    assert (answers[0][0]["memory_used_mb"], answers[0][0]["memory_free_mb"]) == (3072, 1024)
    [reader] = readers
    assert reader is not threading.main_thread()


async def test_health_tells_the_engines_own_account_or_one_from_its_models(serving) -> None:
    async with serving(Warming(EchoSettings())) as served:
        told = (await served.http.get("/health")).json()["activation"]
    assert told == {
        "state": "pre_warming",
        "pending": ["later"],
        "in_progress": "now",
        "completed": [],
        "failed": [{"model": "never", "error": "a bad file"}],
    }
    async with serving() as served:
        health = (await served.http.get("/health")).json()
    assert (health["activation"]["state"], health["activation"]["completed"]) == ("ready", ["echo"])
    assert health["devices"] == []


async def test_a_server_that_does_not_know_its_machine_says_so(serving) -> None:
    async with serving() as served:
        answer = await served.http.get("/discovery")
    assert answer.status_code == 404
    assert "machine" in answer.json()["error"]["message"]
