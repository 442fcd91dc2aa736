"""Requests under which nodes were lost: the innocent are answered, and a suspect runs alone first."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from asking_fleets import PATHS, Said, asking, text_of
from fleets import fleet_of
from proxy_stage import (
    SSE_HEAD,
    STREAM,
    Asking,
    Script,
    Stage,
    always,
    answer,
    chunk,
    post,
    staged,
)
from remote_nodes import held

from ganglion.gateway.failover import choose_node
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.quarantine import Suspicion
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.routing.decision import ChosenNode, NoRoute, RoutingRequest
from ganglion.gateway.routing.router import Router
from support.waiting import until

GOOD = b'{"ok":true,"usage":{"prompt_tokens":1,"completion_tokens":1}}'
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
# Vectors belong to no conversation: they are asked of the least busy node.
SUSPECT = ("/v1/embeddings", b'{"model":"m","input":"hello"}')
OTHER = ("/v1/embeddings", b'{"model":"m","input":"others"}')


async def test_nine_equal_streams_and_two_of_three_nodes_killed_cost_no_later_request(
    tmp_path: Path,
) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    wires = ("chat", "responses") * 9
    bodies = [asking(wire, f"!echo delay=0.03\n{words}") for wire in wires]
    async with fleet_of(tmp_path) as fleet:
        answers = [Said() for _ in wires]
        working = [
            asyncio.create_task(fleet.ask(PATHS[wire], body, said=said))
            for wire, body, said in zip(wires, bodies, answers, strict=True)
        ]
        await asyncio.gather(*(said.began.wait() for said in answers))

        async def is_spread() -> bool:
            return all(count > 0 for count in (await fleet.in_flight()).values())

        await until(is_spread)
        await asyncio.gather(fleet.nodes["a"].kill(), fleet.nodes["b"].kill())
        await asyncio.gather(*working)
        again = await asyncio.gather(
            *(fleet.ask(PATHS[wire], body) for wire, body in zip(wires, bodies, strict=True))
        )
        assert [text_of(wire, said) for wire, said in zip(wires, again, strict=True)] == [words] * 18


def dies(_: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Future[None]:
    writer.transport.abort()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


class Slow:
    """A node that answers when it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = asyncio.Event()

    async def script(self, _: Asking, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.set()
        await self.go.wait()
        writer.write(answer(GOOD))


@asynccontextmanager
async def routed(*scripts: Script, busy: tuple[str, ...] = ()) -> AsyncIterator[Stage]:
    """A front with a real router over nodes that hold `m`; the least busy is asked first."""
    async with staged(*scripts) as stage:
        for name, view in tuple(stage.fleet.nodes.items()):
            stage.fleet.put(held(view.spec, "m", in_flight=int(name in busy)))
        stage.front.chooser = Router(stage.fleet)
        yield stage


async def test_a_suspects_second_run_is_alone_and_clears_it() -> None:
    slow = Slow()
    async with routed(dies, slow.script, slow.script, busy=("n1", "n2")) as stage:
        suspect = asyncio.create_task(stage.ask(post(*SUSPECT)))
        await asyncio.wait_for(slow.asked.wait(), 5)
        (alone,) = stage.fleet.reserved
        others = [asyncio.create_task(stage.ask(post(*OTHER))) for _ in range(6)]
        (other,) = {"n1", "n2"} - {alone}
        stage.fleet.remove("n0")
        await until(lambda: len(stage.nodes[other].asked) >= 4)
        assert len(stage.nodes[alone].asked) == 1
        slow.go.set()
        assert {(await each).status for each in (suspect, *others)} == {200}
        assert stage.fleet.reserved == frozenset()
        assert stage.front.quarantine.is_empty and stage.is_settled


async def test_a_suspect_for_which_no_node_is_free_goes_beside_others() -> None:
    slow = Slow()
    async with routed(dies, slow.script, busy=("n1",)) as stage:
        stage.fleet.in_flight["n1"] += 1
        suspect = asyncio.create_task(stage.ask(post(*SUSPECT)))
        await asyncio.wait_for(slow.asked.wait(), 5)
        assert stage.fleet.reserved == frozenset()
        slow.go.set()
        assert (await suspect).status == 200


async def test_the_last_node_is_nobodys_alone() -> None:
    slow = Slow()
    async with routed(dies, slow.script, busy=("n1",)) as stage:
        stage.front.chooser = Router(stage.fleet)
        suspect = asyncio.create_task(stage.ask(post(*SUSPECT)))
        await asyncio.wait_for(slow.asked.wait(), 5)
        assert stage.fleet.reserved == frozenset()  # others have nowhere else to go
        slow.go.set()
        assert (await suspect).status == 200


async def test_a_node_that_dies_with_other_work_on_it_makes_nobody_a_suspect() -> None:
    def streams_then_dies(count: int) -> Script:
        seen: list[asyncio.StreamWriter] = []

        async def script(_: Asking, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(SSE_HEAD + chunk(EVENT))
            await writer.drain()
            seen.append(writer)
            if len(seen) == count:
                for each in seen:
                    each.transport.abort()
            await reader.read()

        return script

    async with staged(streams_then_dies(3), streams_then_dies(3), always(answer(GOOD))) as stage:
        for node in ("n0", "n1"):
            heard = await asyncio.gather(*(stage.ask(post("/v1/chat/completions", STREAM)) for _ in range(3)))
            assert all(b'data: {"error"' in each.body for each in heard)
            stage.fleet.remove(node)
        key = (stage.keeper.identify(None).tenant, b"/v1/chat/completions", STREAM)
        assert stage.front.quarantine.suspicion(*key) is Suspicion.GRAVE  # two, one after the other
        assert (await stage.ask(post("/v1/chat/completions", STREAM))).body == GOOD  # alone, and well
        assert stage.front.quarantine.is_empty


def test_what_must_run_alone_waits_for_a_free_node_and_is_refused_until_then() -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.put(held(NodeSpec(name, f"http://{name}"), "m"))
    router, asked = Router(fleet), RoutingRequest("m", "chat")
    fleet.in_flight.update(a=1, b=1)
    refused = choose_node(router, asked, Suspicion.GRAVE)
    assert isinstance(refused, NoRoute)
    assert (refused.error.status, refused.error.retry_after_s) == (503, 1)
    assert isinstance(choose_node(router, asked, Suspicion.SUSPECT), ChosenNode)
    fleet.in_flight["b"] = 0
    for suspicion in (Suspicion.GRAVE, Suspicion.SUSPECT):
        chosen = choose_node(router, asked, suspicion)
        assert isinstance(chosen, ChosenNode) and chosen.node.name == "b"
    refused = choose_node(router, asked, Suspicion.REFUSED)
    assert isinstance(refused, NoRoute) and refused.error.code == "request_quarantined"


async def test_a_poison_that_dies_alone_after_dying_among_others_is_refused() -> None:
    async with routed(dies, dies, dies, dies) as stage:
        for name in ("n0", "n1", "n2", "n3"):
            stage.fleet.in_flight[name] += 1
        first = await stage.ask(post(*SUSPECT))
        assert first.status == 502
        waiting = await stage.ask(post(*SUSPECT))
        assert waiting.status == 503 and waiting.header(b"retry-after") is not None
        assert sum(len(node.asked) for node in stage.nodes.values()) == 2
        for name in ("n0", "n1", "n2", "n3"):
            stage.fleet.in_flight[name] -= 1
        await stage.ask(post(*SUSPECT))
        again = await stage.ask(post(*SUSPECT))
        assert json.loads(again.body)["error"]["code"] == "request_quarantined"
        assert sum(len(node.asked) for node in stage.nodes.values()) == 3
