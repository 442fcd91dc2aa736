"""Several processes behind one port: one fleet, one limit, and nobody missed for long."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.gateway.gates import key, secret_of
from tests.gateway.worker_fleet import Caller, Gateway, callers, calling, count_of, gateway_of, joined

from ganglion.core.errors import InvalidValue
from ganglion.server.gateway.lifecycle import run_gateway
from ganglion.server.gateway.settings import GatewaySettings
from ganglion.server.life.storage import StoreSettings
from ganglion.server.settings import ServerSettings
from ganglion.store.opening import MEMORY, open_access

CAP = 60


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("gateway")
    asyncio.run(_add_key(home / "data" / "ganglion.db"))
    with gateway_of(home) as running:
        yield running


async def _add_key(database: Path) -> None:
    access = await open_access(database)
    await access.add_key(key("capped", requests_per_minute=CAP))
    await access.close()


async def _answers(callers: list[Caller], status: int = 200, model: str = "m") -> bool:
    return all([await caller.chat(model) == status for caller in callers])


async def _until(callers: list[Caller], status: int = 200, *, within_s: float = 5) -> None:
    """Every one of them gets that answer."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < within_s:
        if set(await asyncio.gather(*(caller.chat() for caller in callers))) == {status}:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not every worker answers {status}")


async def test_every_worker_knows_a_node_within_a_second_and_counts_what_it_answers(gateway: Gateway) -> None:
    async with callers(gateway) as by_place:
        every = [caller for found in by_place.values() for caller in found]
        assert await _answers(every, 404)
        async with joined(gateway, "a"):
            await _until(every, within_s=1)
            before = count_of((await every[0].call("GET", "/metrics"))[1], "ganglion_gateway_requests_total")
            for caller in every:
                assert await caller.chat() == 200
            _, page = await every[0].call("GET", "/metrics")
            after = count_of(page, "ganglion_gateway_requests_total")
            for place, found in by_place.items():
                # The page itself is one more answer of whoever was asked for it.
                assert after[place] - before[place] == len(found) + (every[0] in found)
            assert page.count(b"# TYPE ganglion_gateway_requests_total ") == 1
            assert set(count_of(page, "ganglion_gateway_node_healthy")) == {0}
        await _until(every, 404, within_s=1)


async def test_what_runs_on_a_node_is_added_up_over_the_workers(gateway: Gateway) -> None:
    async with callers(gateway) as by_place, joined(gateway, "a") as node:
        every = [found[0] for found in by_place.values()]
        await _until(every)
        node.answer_s = 0.5
        running = [asyncio.create_task(caller.chat()) for caller in every]
        await asyncio.sleep(0.2)
        async with calling(gateway) as asking:
            _, body = await asking.call("GET", "/fleet")
            assert json.loads(body)["nodes"][0]["in_flight"] == 2
        assert await asyncio.gather(*running) == [200, 200]


async def test_what_workers_tell_each_other_nobody_else_hears(gateway: Gateway) -> None:
    async with callers(gateway) as by_place:
        for caller in (found[0] for found in by_place.values()):
            for path in ("/shared", "/in_flight", "/fleet/shared", "/load"):
                assert (await caller.call("GET", path))[0] in (404, 405)


async def test_a_cap_admits_exactly_so_many_over_all_workers(gateway: Gateway) -> None:
    if time.time() % 60 > 54:  # the minute that is counted must not end meanwhile
        await asyncio.sleep(60 - time.time() % 60)
    secret = secret_of("capped").decode()
    async with callers(gateway, 8) as by_place, joined(gateway, "a"):
        every = [caller for found in by_place.values() for caller in found]
        await _until(every)
        admitted = dict.fromkeys(by_place, 0)
        while True:
            round_ = await asyncio.gather(*(caller.chat(key=secret) for caller in every))
            assert set(round_) <= {200, 429}
            for place, found in by_place.items():
                admitted[place] += sum(
                    status == 200 for status, caller in zip(round_, every, strict=True) if caller in found
                )
            if 200 not in round_:
                break
        assert sum(admitted.values()) == CAP
        assert min(admitted.values()) > 0


async def test_a_cold_model_is_loaded_once_whichever_worker_is_asked(gateway: Gateway) -> None:
    async with callers(gateway, 3) as by_place, joined(gateway, "a") as node:
        every = [caller for found in by_place.values() for caller in found]
        await _until(every)
        statuses = await asyncio.gather(*(caller.chat("cold") for caller in every))
        assert set(statuses) == {200}
        assert node.loads == {"cold": 1}


@pytest.mark.parametrize("place", [1, 0], ids=["a follower", "the leader"])
async def test_a_killed_worker_takes_only_its_own_connections_along_and_is_replaced(
    gateway: Gateway, place: int
) -> None:
    async with callers(gateway, 2) as by_place, joined(gateway, "a") as node:
        every = [caller for found in by_place.values() for caller in found]
        await _until(every)
        victim = gateway.workers()[place]
        node.answer_s = 0.3
        running = {
            each: [asyncio.create_task(caller.chat()) for caller in found] for each, found in by_place.items()
        }
        await asyncio.sleep(0.1)
        victim.send_signal(signal.SIGKILL)
        for each, tasks in running.items():
            for told in await asyncio.gather(*tasks, return_exceptions=True):
                assert (
                    isinstance(told, asyncio.IncompleteReadError | ConnectionError)
                    if each == place
                    else told == 200
                )
        node.answer_s = 0.0
        survivors = by_place[1 - place]
        assert await _answers(survivors)
        await gateway.replaced(place, victim.pid)
        assert await _answers(survivors), "what was known of the fleet is still known"
        async with callers(gateway) as anew:
            assert await _answers([found[0] for found in anew.values()])
            first = node.epochs[-1]
            await node.join(anew[place][0])
            assert node.epochs[-1] == first, "a lease outlives whoever granted it"
            _, body = await anew[place][0].call("GET", "/fleet")
            assert [each["name"] for each in json.loads(body)["nodes"]] == ["a"]


async def test_a_drain_finishes_what_runs_and_nothing_stays(tmp_path: Path) -> None:
    with gateway_of(tmp_path) as gateway:
        parent = psutil.Process(gateway.process.pid)
        assert parent.num_threads() == 1
        family = parent.children()
        async with callers(gateway) as by_place, joined(gateway, "a") as node:
            every = [found[0] for found in by_place.values()]
            await _until(every)
            node.answer_s = 0.5
            running = [asyncio.create_task(caller.chat()) for caller in every]
            await asyncio.sleep(0.1)
            # As a service manager may do: to every process at once.
            for process in (parent, *family):
                process.send_signal(signal.SIGTERM)
            assert await asyncio.gather(*running) == [200] * len(every)
        assert await asyncio.to_thread(gateway.process.wait, 5) == 0
        assert not [process for process in family if process.is_running()]
        assert "listens on" in gateway.log
        assert gateway.log.count("listens on") == 1
        assert "Traceback" not in gateway.log


async def test_workers_leave_when_the_process_over_them_is_killed(tmp_path: Path) -> None:
    with gateway_of(tmp_path) as gateway:
        family = psutil.Process(gateway.process.pid).children()
        assert len(family) == 2
        os.kill(gateway.process.pid, signal.SIGKILL)
        gateway.process.wait(5)
        _, alive = await asyncio.to_thread(psutil.wait_procs, family, 5)
        assert not alive
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", gateway.port)


@pytest.mark.parametrize("storage", [None, StoreSettings(MEMORY)], ids=["off", "memory"])
def test_workers_that_could_share_nothing_are_refused(storage: StoreSettings | None) -> None:
    settings = GatewaySettings(ServerSettings(port=0), storage=storage, workers=2)
    with pytest.raises(InvalidValue, match="share keys, limits and responses") as refused:
        run_gateway(settings)
    assert "--store" in str(refused.value.hint)
