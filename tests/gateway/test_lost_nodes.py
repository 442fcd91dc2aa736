"""Nodes that hang or are cut off: nothing waits for them longer than until that is known."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asking_fleets import PATHS, WIRES, Said, asking, is_told_broken, text_of
from byte_server import Line, answer, byte_server
from fault_proxy import FaultProxy, fault_proxy
from fleets import NODE_KEY, Fleet, fleet_of
from gateways import Running, gateway
from proxy_stage import SSE_HEAD, chunk
from remote_nodes import echo, listening

from ganglion.gateway.fleet import fleet as fleet_module
from ganglion.gateway.fleet.fleet import Fleet as FleetState
from ganglion.gateway.fleet.probe import PollSettings
from ganglion.gateway.node import NodeSpec, NodeView
from ganglion.server.gateway import gateway_process
from ganglion.wire.dialects import USUAL_WIRES
from support.waiting import until

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
QUICK = "[gateway]\npoll_s = 0.2\nlease_s = 1.0\n"
TEXT = "said by whoever is left"
SLOWLY = f"!echo first_token_delay=0.3\n{TEXT}"
SOON_S = 15.0
"""Far below `first_byte_s`."""


async def in_flight(fleet: Fleet) -> dict[str, int]:
    """What `fleet status` shows."""
    return {name: int(str(node["in_flight"])) for name, node in (await fleet.overview()).items()}


async def test_whole_requests_on_a_node_whose_lease_ends_are_answered_by_the_others(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 3, settings=QUICK, joins=True) as fleet:
        wires = WIRES * 4
        working = [
            asyncio.create_task(
                fleet.ask(PATHS[wire], asking(wire, SLOWLY, is_stream=False), timeout_s=SOON_S)
            )
            for wire in wires
        ]

        async def is_working() -> bool:
            return (await in_flight(fleet))["b"] > 1

        await until(is_working)
        fleet.nodes["b"].running.signal(signal.SIGSTOP)
        try:
            for wire, said in zip(wires, await asyncio.gather(*working), strict=True):
                assert said.status == 200, (wire, said.body)
                assert TEXT in text_of(wire, said, is_stream=False)
            assert await in_flight(fleet) == {"a": 0, "c": 0}
        finally:
            fleet.nodes["b"].running.signal(signal.SIGCONT)


async def test_whole_requests_on_a_node_that_no_longer_answers_are_answered_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice_soon(monkeypatch)
    async with fleet_of(tmp_path, 0) as fleet:
        stopped, other = fleet.node("a"), fleet.node("b")
        await asyncio.gather(stopped.start(), other.start())
        nodes = [NodeSpec(node.name, node.url, api_key=NODE_KEY) for node in (stopped, other)]
        async with gateway(nodes, poll_s=0.1) as running:
            await until_node(running, "a", "healthy")
            await until_node(running, "b", "healthy")
            working = [
                asyncio.create_task(
                    running.http.post(PATHS[wire], json=asking(wire, SLOWLY, is_stream=False))
                )
                for wire in WIRES * 4
            ]
            await until_node(running, "a", "in_flight")
            stopped.running.signal(signal.SIGSTOP)
            try:
                answers = await asyncio.gather(*working)
            finally:
                stopped.running.signal(signal.SIGCONT)
            assert {answer.status_code for answer in answers} == {200}
            assert all(TEXT in answer.text for answer in answers)
            assert not any(node["in_flight"] for node in (await nodes_of(running)).values())


async def test_streams_of_a_stopped_node_end_in_their_wires_own_error(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 1, settings=QUICK, joins=True) as fleet:
        answers = [Said() for _ in WIRES]
        words = " ".join(f"word{number}" for number in range(400))
        working = [
            asyncio.create_task(
                fleet.ask(
                    PATHS[wire], asking(wire, f"!echo delay=0.05\n{words}"), said=said, timeout_s=SOON_S
                )
            )
            for wire, said in zip(WIRES, answers, strict=True)
        ]
        await asyncio.gather(*(said.began.wait() for said in answers))
        node = fleet.nodes["a"].running
        node.signal(signal.SIGSTOP)
        try:
            await asyncio.gather(*working)
        finally:
            node.signal(signal.SIGCONT)
        for wire, said in zip(WIRES, answers, strict=True):
            assert is_told_broken(wire, said), (wire, said.body[-300:])
            assert words.startswith(text_of(wire, said))
        await fleet.until_idle()


def notice_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a gateway in this process take a node for silent after a second."""
    monkeypatch.setattr(gateway_process, "PollSettings", partial(PollSettings, timeout_s=0.3))


@asynccontextmanager
async def linked(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Running, FaultProxy]]:
    """A gateway over two nodes, the first over a link that can be cut, that notices silence soon."""
    notice_soon(monkeypatch)
    async with (
        listening(echo()) as far,
        listening(echo()) as near,
        fault_proxy(int(far.rsplit(":", 1)[1])) as proxy,
    ):
        nodes = (NodeSpec("a", f"http://127.0.0.1:{proxy.port}"), NodeSpec("b", near))
        async with gateway(nodes, poll_s=0.1) as running:
            await until_node(running, "a", "healthy")
            await until_node(running, "b", "healthy")
            yield running, proxy


async def nodes_of(running: Running) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in (await running.http.get("/fleet")).json()["nodes"]}


async def until_node(running: Running, name: str, fact: str) -> None:
    async def is_so() -> bool:
        return bool((await nodes_of(running))[name][fact])

    await until(is_so)


@pytest.mark.parametrize("link", ["hanging", "one way"])
async def test_what_waits_behind_a_dead_link_goes_elsewhere(
    link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with linked(monkeypatch) as (running, proxy):
        text = f"!echo first_token_delay=0.5\n{TEXT}"
        working = [
            asyncio.create_task(
                running.http.post(PATHS[wire], json=asking(wire, f"{text} {number}", is_stream=False))
            )
            for number in range(4)
            for wire in ("chat", "responses")
        ]
        await until_node(running, "a", "in_flight")
        proxy.is_cut_off, proxy.is_mute = link == "hanging", link == "one way"
        answers = await asyncio.gather(*working)
        assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
        nodes = await nodes_of(running)
        assert not nodes["a"]["healthy"]
        assert not any(node["in_flight"] for node in nodes.values())


async def test_a_stream_that_flows_outlives_polls_that_time_out_and_ends_once_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def deaf(line: Line) -> None:
        while (await line.asked()).startswith("GET"):
            if is_deaf.is_set():
                await line.until_cut()
            await line.say(answer(b'{"object":"list","data":[{"id":"m"}]}'))
        await line.say(SSE_HEAD)
        while not is_mute.is_set():
            await line.say(chunk(EVENT), gap_s=0.02)
        await line.until_cut()

    notice_soon(monkeypatch)
    monkeypatch.setattr(fleet_module, "ALIVE_S", 1.0)
    is_deaf, is_mute = asyncio.Event(), asyncio.Event()
    async with byte_server(deaf) as server:
        node = NodeSpec("a", server.url, "openai", wires=USUAL_WIRES)
        async with gateway([node], poll_s=0.1) as running:
            body = {**asking("chat", "x"), "model": "m"}
            asked = asyncio.create_task(running.http.post(PATHS["chat"], json=body))
            await until_node(running, "a", "in_flight")
            is_deaf.set()
            await until_node(running, "a", "error")

            async def is_ill() -> bool:
                return not (await nodes_of(running))["a"]["healthy"]

            await until(is_ill)
            await asyncio.sleep(1.0)  # some polls more
            assert not asked.done()
            is_mute.set()
            said = await asyncio.wait_for(asked, 10)
            assert '{"error"' in said.text and "no longer answers" in said.text


async def test_a_node_that_answers_nonsense_is_unhealthy_and_what_it_runs_goes_on() -> None:
    async def odd(line: Line) -> None:
        while True:
            asked = await line.asked()
            if asked.startswith("POST"):
                await asyncio.sleep(0.6)  # longer than three polls take
                await line.say(answer(b'{"late": true}', headers=b"content-type: application/json\r\n"))
            elif is_odd.is_set():
                await line.say(answer(b"{}", status="500 No"))
            else:
                await line.say(answer(b'{"object":"list","data":[{"id":"m"}]}'))

    is_odd = asyncio.Event()
    async with byte_server(odd) as server:
        node = NodeSpec("a", server.url, "openai", wires=USUAL_WIRES)
        async with gateway([node], poll_s=0.05) as running:
            body = {**asking("chat", "x"), "model": "m"}
            asked = asyncio.create_task(running.http.post(PATHS["chat"], json=body))
            await until_node(running, "a", "in_flight")
            is_odd.set()
            said = await asked
            assert (said.status_code, said.json()) == (200, {"late": True})
            assert not (await nodes_of(running))["a"]["healthy"]


def test_what_runs_on_a_node_whose_lease_ended_or_that_is_silent_is_given_up() -> None:
    class Work:
        last_heard_s = 0.0

        def __init__(self) -> None:
            self.is_withdrawn = False

        def withdraw(self) -> None:
            self.is_withdrawn = True

    specs = [NodeSpec(name, f"http://{name}", epoch=7) for name in ("left", "lapsed", "silent", "well")]
    fleet = FleetState(tuple(specs))
    works = {spec.name: Work() for spec in specs}
    for name, work in works.items():
        fleet.count_in(name, work)
    fleet.remove("left")
    fleet.expire("lapsed")
    fleet.put(NodeView(specs[2], is_silent=True))
    gone = {name for name, work in works.items() if work.is_withdrawn}
    assert gone == {"lapsed", "silent"}
    for name, work in works.items():
        fleet.count_out(name, work)
    assert not any(fleet.in_flight.values())
