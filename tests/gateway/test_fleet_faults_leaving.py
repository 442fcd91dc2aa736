"""Nodes that leave: drained under load, and cut off from their gateway while their leases run out."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from asking_fleets import PATHS, Said, ask, asking, is_whole, text_of
from fault_proxy import FaultProxy, Passage, fault_proxy
from fleets import NODE_KEY, SOAK, Fleet, fleet_of

from support.waiting import until

pytestmark = pytest.mark.timeout(120 * SOAK)

LEASE_S = 1.0
TEXT = " ".join(f"word{number}" for number in range(12))


@asynccontextmanager
async def load(fleet: Fleet, clients: int = 6) -> AsyncIterator[list[Said]]:
    """Clients that ask all the time, streams and whole answers; what they heard."""
    heard: list[Said] = []
    done = asyncio.Event()
    numbers = count()

    async def client() -> None:
        while not done.is_set():
            number = next(numbers)
            body = asking("chat", f"!echo delay=0.005\n{TEXT}", is_stream=number % 2 == 0)
            said = await fleet.ask(PATHS["chat"], {**body, "prompt_cache_key": str(number)})
            heard.append(said)
            assert said.status == 200, said.body
            assert number % 2 or is_whole("chat", said), said.body[-300:]
            assert text_of("chat", said, is_stream=number % 2 == 0) == TEXT

    working = [asyncio.create_task(client()) for _ in range(clients)]
    try:
        yield heard
    finally:
        done.set()
        await asyncio.gather(*working)


@pytest.mark.parametrize("joins", [True, False], ids=["joined", "declared"])
async def test_a_node_that_drains_under_load_fails_nobody(tmp_path: Path, joins: bool) -> None:
    async with fleet_of(tmp_path, settings="[gateway]\npoll_s = 0.2\nlease_s = 2\n", joins=joins) as fleet:
        async with load(fleet) as heard:
            for number in range(5 * SOAK):
                node = fleet.nodes["abc"[number % 3]]
                before = len(heard)
                assert await node.running.terminate() == 0

                async def are_served(before: int = before) -> bool:
                    return len(heard) > before + 12

                await until(are_served)
                await node.start()
                await fleet.until_healthy()
        await fleet.until_idle()


@asynccontextmanager
async def partitioned(folder: Path) -> AsyncIterator[tuple[Fleet, FaultProxy, FaultProxy]]:
    """Two nodes that joined; all that `a` says and hears goes through two proxies: to it, and from it."""
    async with fleet_of(folder, 0) as fleet:
        (folder / "fleet.toml").write_text(
            f"[gateway]\npoll_s = 0.2\nlease_s = {LEASE_S}\nfirst_byte_s = 3\n"
        )
        first, second = fleet.node("a"), fleet.node("b")
        async with fault_proxy(first.port) as to_node, fault_proxy(fleet.gateway.port) as to_gateway:
            advertised = f"http://127.0.0.1:{to_node.port}"
            joined = f"http://127.0.0.1:{to_gateway.port}"
            first.args += ["--join", joined, "--node-name", "a", "--advertise", advertised]
            second.args += ["--join", fleet.gateway.url, "--node-name", "b"]
            await fleet.gateway.start()
            await asyncio.gather(first.start(), second.start())
            await fleet.until_healthy()
            yield fleet, to_node, to_gateway


async def state_of(fleet: Fleet, name: str) -> dict[str, object]:
    state: dict[str, object] = json.loads(await fleet.nodes[name].page("/fleet/state"))
    return state


async def test_work_that_comes_after_the_lease_is_refused_and_done_elsewhere(tmp_path: Path) -> None:
    async with partitioned(tmp_path) as (fleet, to_node, to_gateway):

        async def late(passage: Passage) -> None:
            """What was sent under the lease arrives when it is over."""

            async def is_over() -> bool:
                return (await state_of(fleet, "a"))["epoch"] is None

            await until(is_over)
            await passage.say(await passage.answer())

        before = await fleet.nodes["a"].gauge("ganglion_requests_total")
        to_node.fault, to_gateway.is_cut_off = late, True
        while not to_node.spoilt:
            body = asking("chat", TEXT, is_stream=False, prompt_cache_key=str(time.monotonic()))
            said = await fleet.ask(PATHS["chat"], body)
            assert said.status == 200, said.body
            assert text_of("chat", said, is_stream=False) == TEXT
        assert await fleet.nodes["a"].gauge("ganglion_requests_total") == before
        assert "lease_lost" not in said.body.decode()


async def test_a_partitioned_node_works_for_nobody_and_is_back_within_a_lease(tmp_path: Path) -> None:
    async with partitioned(tmp_path) as (fleet, to_node, to_gateway):
        for number in range(2 * SOAK):
            epoch = (await state_of(fleet, "a"))["epoch"]
            assert epoch is not None
            # Cut off altogether, or in one direction only.
            to_gateway.is_cut_off = True
            to_node.is_cut_off = number % 2 == 0

            async def is_over() -> bool:
                return (await state_of(fleet, "a"))["epoch"] is None and "a" not in await fleet.overview()

            await until(is_over, LEASE_S + 2)
            stale = await ask(
                fleet.nodes["a"].port,
                PATHS["chat"],
                asking("chat", TEXT),
                key=NODE_KEY,
                headers=[f"x-ganglion-epoch: {epoch}"],
            )
            assert (stale.status, stale.code) == (503, "lease_lost"), stale.body
            for _ in range(5):
                said = await fleet.ask(PATHS["chat"], asking("chat", TEXT))
                assert text_of("chat", said) == TEXT
            await asyncio.sleep(1.5 * LEASE_S)  # long enough for patience to wear off
            to_gateway.is_cut_off = to_node.is_cut_off = False
            healed_s = time.monotonic()
            await fleet.until_healthy("a", timeout_s=20)
            assert time.monotonic() - healed_s < LEASE_S + 1.0  # and what a busy machine takes
            assert (await state_of(fleet, "a"))["epoch"] != epoch
