"""How a node tells a gateway how it is."""

import asyncio
import time

import pytest

from ganglion.core.machine import Cpu, DeviceReading, EngineFacts, Machine, MachineSource
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.server.endpoints.health import LOAD_S
from ganglion.server.fleet_membership import MAX_AFFINITIES, WarmConversations
from ganglion.wire.fleet import NodeState, parse_state
from support.waiting import until

STATE = "/fleet/state"
GATEWAY = {"authorization": "Bearer gate"}


async def state(served, since: int | None = None, wait_s: float = 0) -> NodeState:
    asked = {} if since is None else {"since": since, "wait": wait_s}
    answer = await served.http.get(STATE, params=asked, headers=GATEWAY)
    assert answer.status_code == 200, answer.text
    return parse_state(answer.content)


async def settled(served) -> NodeState:
    """The state of a node whose model is there."""
    async with asyncio.timeout(5):
        while (now := await state(served)).status != "ok":  # noqa: ASYNC110 - asked from outside
            await asyncio.sleep(0.01)
    return now


async def test_a_state_tells_what_a_gateway_needs(serving) -> None:
    reading = DeviceReading(0, "a card", 1000, 23000, 12.5, 40.0)
    reads = 0

    async def readings() -> tuple[DeviceReading, ...]:
        nonlocal reads
        reads += 1
        return (reading,)

    async def describe() -> Machine:
        engines = EngineFacts("llama", "1"), EngineFacts("vllm", "2", layout=("tensor_parallel",))
        return Machine("a", "", "", Cpu("", "", 1), 1, (), engines)

    engine = EchoEngine(EchoSettings(aliases=("parrot",)))
    async with serving(engine, machine=MachineSource(describe, readings)) as served:
        told = await settled(served)
        [model] = told.models
        assert (model.id, model.status, model.aliases, model.slots_total) == (
            "echo",
            "loaded",
            ("parrot",),
            16,
        )
        [device] = told.devices
        assert (device.index, device.memory_free_mb) == (0, 23000)
        assert told.engines == {"llama": (), "vllm": ("tensor_parallel",)}
        assert (told.digest, told.epoch, len(told.boot)) == ((), None, 16)
        again = await state(served)
        assert again == told, "nothing changed"
        assert reads == 1


async def test_a_machine_that_cannot_be_described_keeps_no_state_from_a_gateway(serving) -> None:
    described = 0

    async def describe() -> Machine:
        nonlocal described
        described += 1
        if described == 1:
            await asyncio.sleep(60)
        raise OSError("no such file")

    async def readings() -> tuple[DeviceReading, ...]:
        return ()

    async with serving(EchoEngine(EchoSettings()), machine=MachineSource(describe, readings)) as served:
        told = await settled(served)
        assert (told.engines, [model.id for model in told.models]) == ({}, ["echo"])
        assert described == 1, "and it is not asked again at once"


async def test_who_waits_hears_of_a_change_at_once_and_of_none_when_the_wait_is_over(serving) -> None:
    engine = EchoEngine(EchoSettings(recovery_s=5))
    async with serving(engine) as served:
        told = await settled(served)
        began_s = time.monotonic()
        same = await state(served, told.version, wait_s=0.3)
        assert (same.version, time.monotonic() - began_s >= 0.29) == (told.version, True)
        waiting = [asyncio.create_task(state(served, told.version, wait_s=20)) for _ in range(3)]
        await asyncio.sleep(0.15)
        assert not any(each.done() for each in waiting)
        engine.crash()
        began_s = time.monotonic()
        heard = await asyncio.gather(*waiting)
        assert time.monotonic() - began_s < 10, "half of what was asked for"
        assert {each.version for each in heard} == {told.version + 1}
        assert heard[0].models[0].status == "recovering"
        old = await state(served, told.version, wait_s=20)
        assert old.version == told.version + 1, "a version that is not the last is answered at once"


async def test_load_alone_is_told_now_and_then(serving) -> None:
    async with serving() as served:
        told = await settled(served)
        running = asyncio.create_task(served.post("!echo delay=0.03 unbounded=1\na", max_tokens=60))
        versions = 0
        ends_s = time.monotonic() + 1.6
        seen = 0
        while time.monotonic() < ends_s:
            heard = await state(served, told.version, wait_s=0.4)
            versions += heard.version != told.version
            seen = max(seen, heard.models[0].in_flight)
            told = heard
        await running
        assert seen == 1
        assert 1 <= versions <= 4


async def test_the_digest_knows_the_conversations_that_were_started_the_latest_last(serving) -> None:
    async with serving(gateway_keys=("gate",)) as served:
        told = await settled(served)

        async def ask(affinity: str, **fields: object) -> int:
            headers = GATEWAY | {"x-ganglion-affinity": affinity}
            body = served.chat(**fields)
            return (await served.http.post("/v1/chat/completions", json=body, headers=headers)).status_code

        waiting = asyncio.create_task(state(served, told.version, wait_s=20))
        assert await ask("aa") == 200
        assert (await asyncio.wait_for(waiting, 2)).digest == ("aa",)
        assert await ask("bb", stream=True) == 200
        assert await ask("cc", model="nobody") == 404
        assert set((await state(served)).digest) == {"aa", "bb"}
        assert await ask("aa") == 200
        await asyncio.sleep(LOAD_S)
        assert (await state(served)).digest == ("bb", "aa")


def test_a_digest_forgets_what_was_not_used_for_longest_and_keeps_no_other_names() -> None:
    digest = WarmConversations()
    for number in range(MAX_AFFINITIES):
        digest.record(f"{number:x}")
    digest.record("0")
    digest.record("ffff")
    told = digest.affinities()
    assert len(told) == MAX_AFFINITIES
    assert told[-2:] == ("0", "ffff")
    assert "1" not in told
    for name in ("", "a word", "f" * 65, "FF"):
        digest.record(name)
    assert digest.affinities() == told


async def test_a_node_that_leaves_says_so_and_nobody_who_waits_holds_it_up(serving) -> None:
    async with serving(drain_timeout_s=5) as served:
        told = await settled(served)
        running = asyncio.create_task(served.post("!echo delay=0.05\n" + "a " * 20))
        await until(lambda: served.slots_used() == 1)
        waiting = asyncio.create_task(state(served, told.version, wait_s=25))
        served.shutdown.ask()
        heard = await waiting
        while heard.status != "draining":
            heard = await state(served, heard.version, wait_s=25)
        waiting = asyncio.create_task(state(served, (await state(served)).version, wait_s=25))
        assert (await running).status_code == 200
        began_s = time.monotonic()
        await asyncio.gather(waiting, return_exceptions=True)
        await served.ended
        assert time.monotonic() - began_s < 12, "half of what was asked for"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("since=x", "since"),
        ("since=-1", "since"),
        ("since=1e3&wait=1", "since"),
        ("since=1&wait=soon", "wait"),
        ("since=1&wait=-1", "wait"),
        ("since=1&wait=nan", "wait"),
        ("since=1&wait=inf", "wait"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused_by_name(calling, query: str, param: str) -> None:
    async with calling() as http:
        refused = await http.get(f"{STATE}?{query}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
