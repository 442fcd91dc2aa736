"""A thousand clients at once: for a model that nobody holds, and for a key that may not ask so often."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest
from asking_fleets import PATHS, Said, ask, asking
from fleets import SOAK, Fleet, declaration, fleet_of

HERD = 1000
CATALOGUE = '[[models]]\nid = "big"\nmemory_mb = 100\n'

pytestmark = pytest.mark.timeout(120 * SOAK)


async def stampede(fleet: Fleet, body: dict[str, object], count: int) -> list[Said]:
    """All of them at once; a listener's backlog is the only queue."""
    return await asyncio.gather(*(fleet.ask(PATHS["chat"], body, timeout_s=60) for _ in range(count)))


async def hollow(fleet: Fleet, names: str, *args: str) -> None:
    for name in names:
        fleet.node(name, "hollow", *args)
    await asyncio.gather(*(node.start() for node in fleet.nodes.values()))
    declared = "".join(declaration(node) for node in fleet.nodes.values())
    (fleet.folder / "fleet.toml").write_text("[gateway]\npoll_s = 0.2\n" + declared)
    await fleet.gateway.start()
    await fleet.until_healthy()


async def test_a_thousand_cold_requests_load_their_model_once(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 0, catalogue=CATALOGUE) as fleet:
        await hollow(fleet, "abc", "--load-s", "2")
        body = asking("chat", "hello", is_stream=False, model="big")
        answers = await stampede(fleet, body, HERD)
        assert {said.status for said in answers} == {200}
        assert sum(node.noted("load") for node in fleet.nodes.values()) == 1
        assert sum(node.noted("chat") for node in fleet.nodes.values()) == HERD
        await fleet.until_idle()


async def test_a_load_that_fails_fails_once_for_a_thousand(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 0, catalogue=CATALOGUE) as fleet:
        await hollow(fleet, "a", "--load-s", "2", "--fails")
        body = asking("chat", "hello", is_stream=False, model="big")
        answers = await stampede(fleet, body, HERD)
        assert {(said.status, said.code) for said in answers} == {(422, "load_failed")}
        assert fleet.nodes["a"].noted("load") == 1
        await fleet.until_idle()


async def test_a_limit_of_so_many_lets_exactly_so_many_in(tmp_path: Path) -> None:
    cap = 20
    async with fleet_of(tmp_path, 2) as fleet:
        for number in range(2 * SOAK):
            key = await fleet.new_key(f"limited{number}", "--requests-per-minute", str(cap))
            if time.time() % 60 > 52:  # the next minute has another cap
                await asyncio.sleep(60.1 - time.time() % 60)
            body = asking("chat", "!echo first_token_delay=0.05\nhello", is_stream=number % 2 == 1)
            answers = await asyncio.gather(
                *(ask(fleet.gateway.port, PATHS["chat"], body, key=key) for _ in range(10 * cap))
            )
            refused = [said for said in answers if said.status != 200]
            assert len(answers) - len(refused) == cap, Counter(said.status for said in answers)
            assert {(said.status, said.code) for said in refused} == {(429, "rate_limit_exceeded")}
            assert all(0 < int(said.headers["retry-after"]) <= 60 for said in refused)
            for said in refused:
                error = said.document["error"]
                assert isinstance(error, dict)
                assert (error["limit"], error["remaining"], error["kind"]) == (cap, 0, "requests")
                assert 0 < error["reset"] <= 60


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("poison", ["a spoon of arsenic", "a grain of strychnine"])
async def test_a_poison_request_meets_two_nodes_of_five_and_then_none(
    tmp_path: Path, wire: str, poison: str
) -> None:
    async with fleet_of(tmp_path, 0) as fleet:
        await hollow(fleet, "abcde", "--holds", "m")
        body = asking(wire, poison, is_stream="strychnine" in poison, model="m")
        for _ in range(2):  # who dies before the first words costs the first one two nodes, else one each
            said = await fleet.ask(PATHS[wire], body)
            assert said.is_ended
        for _ in range(20):
            again = await fleet.ask(PATHS[wire], body)
            assert b"took down two nodes" in again.body, again.body
            assert again.status == 422 or wire == "responses", again.body
        assert sum(node.noted("poison") for node in fleet.nodes.values()) == 2
        dead = [name for name, node in fleet.nodes.items() if node.running.ended.done()]
        assert len(dead) == 2
        for number in range(20):
            said = await fleet.ask(
                PATHS["chat"], asking("chat", f"sugar {number}", is_stream=False, model="m")
            )
            assert said.status == 200, said.body
