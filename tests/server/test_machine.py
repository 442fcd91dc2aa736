"""`/health` and `/discovery` over a real socket."""

import asyncio
import time

from ganglion.cli.machine import watch_machine
from ganglion.core.engine import Activation
from ganglion.core.machine import MachineSource
from ganglion.engines.echo import EchoEngine, EchoSettings

KEYS = {"x-api-key": "secret"}


class Warming(EchoEngine):
    """An engine that gives an account of its own."""

    def activation(self) -> Activation:
        return Activation(pending=("later",), in_progress="now", failed=(("never", "a bad file"),))


async def test_discovery_describes_this_machine(serving) -> None:
    async with serving(machine=watch_machine().source) as served:
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
    async with serving(machine=watch_machine().source, api_keys=("secret",)) as served:
        for path in ("/discovery", "/health"):
            assert (await served.http.get(path)).status_code == 401
            assert (await served.http.get(path, headers=KEYS)).status_code == 200


async def test_health_reads_the_devices_once_in_five_seconds_and_never_on_the_event_loop(serving) -> None:
    watched = watch_machine()
    reads = []
    read_memory = watched.devices._read_memory
    watched.devices._read_memory = lambda: (reads.append(1), read_memory())[1]
    async with serving(machine=watched.source) as served:
        answers = [(await served.http.get("/health")).json() for _ in range(20)]
    assert len(reads) == 1
    [device] = {str(answer["devices"]) for answer in answers}
    assert "memory_free_mb" in device


async def test_a_machine_that_cannot_be_read_holds_up_health_only_for_a_moment(serving) -> None:
    async def never() -> tuple[()]:
        return ()

    async with serving(machine=MachineSource(describe=asyncio.Event().wait, readings=never)) as served:
        began_s = time.monotonic()
        assert (await served.http.get("/health")).json()["devices"] == []
        assert time.monotonic() - began_s < 5


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
