"""A fleet under load whose nodes are killed, before and after the first byte of what they answer."""

import asyncio
import csv
import random
from pathlib import Path

import pytest
from asking_fleets import (
    PATHS,
    WIRES,
    Said,
    asking,
    is_told_broken,
    is_whole,
    text_of,
    usage_of,
)
from fleets import KILLS, SOAK, Fleet, fleet_of

from support.waiting import until

pytestmark = pytest.mark.timeout(120 * SOAK)


async def executions(fleet: Fleet, *, but: str = "") -> float:
    """Requests that ended at the nodes that are left."""
    return sum(
        [await node.gauge("ganglion_requests_total") for name, node in fleet.nodes.items() if name != but]
    )


async def busiest(fleet: Fleet, count: int) -> str:
    """The node with the most in flight, once so many are."""
    seen: dict[str, float] = {}

    async def are_all() -> bool:
        seen.update(await fleet.in_flight())
        return sum(seen.values()) >= count

    await until(are_all)
    return max(seen, key=lambda name: seen[name])


async def test_a_node_killed_before_its_first_byte_costs_nobody_an_answer(tmp_path: Path) -> None:
    asked = [(wire, is_stream) for wire in ("chat", "messages", "responses") for is_stream in (True, False)]
    async with fleet_of(tmp_path) as fleet:
        fleet.key = await fleet.new_key("load", "--role", "admin")
        spent, answers, struck = [0, 0], 0, 0
        for kill in range(KILLS):
            before = {name: await node.gauge("ganglion_requests_total") for name, node in fleet.nodes.items()}
            texts = [f"round {kill} wire {wire} {is_stream} says so" for wire, is_stream in asked]
            working = [
                asyncio.create_task(
                    fleet.ask(
                        PATHS[wire],
                        asking(wire, f"!echo first_token_delay=0.2\n{text}", is_stream=is_stream),
                    )
                )
                for (wire, is_stream), text in zip(asked, texts, strict=True)
            ]
            victim = await busiest(fleet, len(asked))
            held = (await fleet.in_flight())[victim]
            await fleet.nodes[victim].kill()
            answered = await asyncio.gather(*working)
            for (wire, is_stream), text, said in zip(asked, texts, answered, strict=True):
                assert said.status == 200, said.body
                assert not is_stream or is_whole(wire, said), said.body
                assert text_of(wire, said, is_stream=is_stream) == text
                prompt, completion = usage_of(wire, said, is_stream=is_stream)
                spent[0] += prompt
                spent[1] += completion
                answers += 1
            # Each was answered by a survivor, and none there twice: with the dead one, two at most.
            ended = await executions(fleet, but=victim) - sum(
                before[name] for name in before if name != victim
            )
            assert ended == len(asked)
            struck += int(held)
            await fleet.nodes[victim].start()
            await fleet.until_healthy()
        assert struck >= KILLS
        assert await fleet.gateway.running.terminate() == 0
        rows = list(csv.DictReader((await fleet.command("usage", "--csv")).splitlines()))
        counted = [
            sum(int(row[name]) for row in rows) for name in ("prompt_tokens", "completion_tokens", "requests")
        ]
        assert counted == [*spent, answers]


async def test_a_node_killed_after_the_first_byte_is_told_on_every_wire_behind_an_exact_prefix(
    tmp_path: Path,
) -> None:
    rng = random.Random(6)
    words = " ".join(f"word{number}" for number in range(36))
    broken = dict.fromkeys(WIRES, 0)
    kills = 0
    async with fleet_of(tmp_path) as fleet:
        while kills < KILLS or min(broken.values()) < KILLS:
            assert kills < 4 * KILLS, broken
            wires = WIRES * 3
            text = f"round {kills} {words}"  # under the same request two nodes in a row are no accident
            answers = [Said() for _ in wires]
            working = [
                asyncio.create_task(
                    fleet.ask(PATHS[wire], asking(wire, f"!echo delay=0.008\n{text}"), said=said)
                )
                for wire, said in zip(wires, answers, strict=True)
            ]
            await asyncio.wait_for(asyncio.gather(*(said.began.wait() for said in answers)), 20)
            await asyncio.sleep(rng.uniform(0, 0.12))
            victim = await busiest(fleet, 1)
            await fleet.nodes[victim].kill()
            kills += 1
            await asyncio.gather(*working)
            for wire, said in zip(wires, answers, strict=True):
                heard = text_of(wire, said)
                if is_whole(wire, said):
                    assert heard == text
                else:
                    assert is_told_broken(wire, said), (wire, said.is_ended, said.body[-400:])
                    assert text.startswith(heard) and heard
                    broken[wire] += 1
            await fleet.nodes[victim].start()
            await fleet.until_healthy()
