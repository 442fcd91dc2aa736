"""The gateway itself is killed, restarted and drained under load, and its clients leave."""

import asyncio
import random
import time
from pathlib import Path

import psutil
import pytest
from asking_fleets import PATHS, WIRES, Said, ask, asking, is_whole, text_of
from fleets import SOAK, Fleet, fleet_of

from support.raw_http import request_bytes
from support.waiting import until

pytestmark = pytest.mark.timeout(120 * SOAK)

LEASE_S = 2.0
JOINED = f"[gateway]\npoll_s = 0.2\nlease_s = {LEASE_S}\n"


async def keep_storing(fleet: Fleet, name: str, acknowledged: dict[str, str], done: asyncio.Event) -> None:
    number = 0
    while not done.is_set():
        number += 1
        text = f"{name} says {number}"
        try:
            said = await fleet.ask(PATHS["responses"], {"model": "echo", "input": text}, timeout_s=5)
        except (OSError, TimeoutError):
            await asyncio.sleep(0.02)
            continue
        if said.is_ended and said.status == 200:
            acknowledged[str(said.document["id"])] = text
        else:
            await asyncio.sleep(0.02)


async def test_a_gateway_that_is_killed_loses_no_response_that_it_acknowledged(tmp_path: Path) -> None:
    acknowledged: dict[str, str] = {}
    pending: list[str] = []
    async with fleet_of(tmp_path, settings=JOINED, joins=True) as fleet:
        done = asyncio.Event()
        workers = [
            asyncio.create_task(keep_storing(fleet, f"worker {number}", acknowledged, done))
            for number in range(4)
        ]
        for _ in range(5 * SOAK):
            before = len(acknowledged)

            async def is_more(before: int = before) -> bool:
                return len(acknowledged) >= before + 8

            await until(is_more)
            slow = {"model": "echo", "input": "!echo delay=0.2\na b c d e f g h i j", "background": True}
            background = await fleet.ask(PATHS["responses"], slow)
            pending.append(str(background.document["id"]))
            await fleet.gateway.kill()
            for node in fleet.nodes.values():
                said = await ask(node.port, PATHS["chat"], asking("chat", "hi"), key="between-us")
                assert is_whole("chat", said)
            await fleet.gateway.start()
            began_s = time.monotonic()
            await fleet.until_healthy()
            assert time.monotonic() - began_s < LEASE_S + 1.0  # and what a busy machine takes
        done.set()
        await asyncio.gather(*workers)
        for name, text in acknowledged.items():
            kept = await fleet.ask(f"/v1/responses/{name}")
            assert kept.status == 200, (name, kept.body)
            assert text_of("responses", kept, is_stream=False) == text
        last = list(acknowledged)[-1]
        asked = {"model": "echo", "input": "and on", "previous_response_id": last}
        follows = await fleet.ask(PATHS["responses"], asked)
        assert follows.status == 200, follows.body
        assert follows.document["previous_response_id"] == last

        async def are_settled() -> bool:
            kept = [await fleet.ask(f"/v1/responses/{name}") for name in pending]
            return all(said.document["status"] in ("completed", "failed") for said in kept)

        await until(are_settled, pause_s=0.1)


async def test_a_gateway_that_drains_finishes_what_it_let_in_and_refuses_the_rest(tmp_path: Path) -> None:
    text = " ".join(f"word{number}" for number in range(40))
    for _ in range(2 * SOAK):
        folder = tmp_path / str(random.random())
        folder.mkdir()
        async with fleet_of(folder, 2) as fleet:
            answers = [Said() for _ in range(10)]
            wires = WIRES * 2
            working = [
                asyncio.create_task(
                    fleet.ask(PATHS[wire], asking(wire, f"!echo delay=0.02\n{text}"), said=said)
                )
                for wire, said in zip(wires, answers, strict=True)
            ]
            await asyncio.gather(*(said.began.wait() for said in answers))
            ending = asyncio.create_task(fleet.gateway.running.terminate())
            await asyncio.sleep(0.1)
            for wire in WIRES:
                refused = await fleet.ask(PATHS[wire], asking(wire, "too late"))
                assert refused.status in (503, 529), refused.body
                assert int(refused.headers["retry-after"]) > 0
            ready = await fleet.ask("/health/ready")
            assert ready.status == 503
            began_s = time.monotonic()
            await asyncio.gather(*working)
            for wire, said in zip(wires, answers, strict=True):
                assert is_whole(wire, said), (wire, said.body[-300:])
                assert text_of(wire, said) == text
            assert await ending == 0
            assert time.monotonic() - began_s < 5
            assert await fleet.orphans() == []


async def leave_early(fleet: Fleet, wire: str, phase: str) -> None:
    body = asking(
        wire, "!echo first_token_delay=0.05 delay=0.01\n" + "on and on " * 50, is_stream=phase != "whole"
    )
    if phase == "sending":
        whole = request_bytes(PATHS[wire], body)
        _, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.port)
        writer.write(whole[: random.randrange(1, len(whole))])
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.transport.abort()
        return
    if phase in ("waiting", "whole"):
        asking_it = asyncio.create_task(fleet.ask(PATHS[wire], body))
        await asyncio.sleep(random.uniform(0.0, 0.05))
        asking_it.cancel()
        await asyncio.gather(asking_it, return_exceptions=True)
        return
    tokens = random.randrange(1, 20)
    await fleet.ask(PATHS[wire], body, on_bytes=lambda said: said.body.count(b"\n") > 3 * tokens)


async def test_clients_that_leave_in_any_phase_leave_nothing_behind(tmp_path: Path) -> None:
    phases = ("sending", "waiting", "whole", "streaming")
    async with fleet_of(tmp_path, 2) as fleet:
        for wire in WIRES:  # whatever is made once is made
            await fleet.ask(PATHS[wire], asking(wire, "hello"))
        await fleet.until_idle()
        tasks = await fleet.gateway.gauge("ganglion_asyncio_tasks", None)
        fds, _ = fleet.holdings()
        leaving = [(wire, phase) for wire in WIRES for phase in phases] * (15 * SOAK)
        random.shuffle(leaving)
        for start in range(0, len(leaving), 50):
            await asyncio.gather(*(leave_early(fleet, *each) for each in leaving[start : start + 50]))
        await fleet.until_idle()

        async def is_flat() -> bool:
            open_now, _ = fleet.holdings()
            tasks_now = await fleet.gateway.gauge("ganglion_asyncio_tasks", None)
            pooled = await kept_connections(fleet)
            return open_now - pooled <= fds + 4 and tasks_now <= tasks + 2

        await until(is_flat, pause_s=0.1)
        said = await fleet.ask(PATHS["chat"], asking("chat", "still here"))
        assert text_of("chat", said) == "still here"


async def kept_connections(fleet: Fleet) -> int:
    """Free connections to nodes, and to its own desk, that a gateway keeps for the next request."""
    ports = {node.port for node in fleet.nodes.values()}
    found = psutil.Process(fleet.gateway.running.pid).net_connections("all")
    to_nodes = [each for each in found if each.raddr and getattr(each.raddr, "port", 0) in ports]
    desk = [each for each in found if each.family.name == "AF_UNIX"]
    return len(to_nodes) + len(desk)
