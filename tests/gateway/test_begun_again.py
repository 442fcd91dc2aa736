"""Whole answers whose node dies in their middle: nothing was given out, so another node begins them again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

import httpx
import pytest
from asking_fleets import PATHS
from fault_proxy import FaultProxy, Passage, fault_proxy
from gateways import Running, gateway
from remote_nodes import echo, listening, response, scripted
from test_fleet_engine import BEGUN, SSE, WHOLE, Room, ask, room, sse

from ganglion.core.events import Delta, Failed, Finished, Progress, Started
from ganglion.core.fold import fold
from ganglion.core.request import Request
from ganglion.gateway.node import NodeKind, NodeSpec
from ganglion.server.deadlines import with_deadlines
from ganglion.server.settings import AnswerDeadlines
from ganglion.wire.dialects import ALL_WIRES, USUAL_WIRES

assert room  # a fixture
TEXT = "as it was said so it comes back in the end"
WORDS = {"chat": "messages", "messages": "messages", "responses": "input", "ollama": "messages"}


@dataclass
class Stage:
    """A gateway over two nodes, each behind a proxy."""

    running: Running
    proxies: list[FaultProxy]

    async def ask(self, wire: str, *, is_stream: bool = False, **more: object) -> httpx.Response:
        messages = [{"role": "user", "content": TEXT}]
        asked = TEXT if WORDS[wire] == "input" else messages
        body = {"model": "echo", WORDS[wire]: asked, "stream": is_stream, **more}
        if wire == "messages":
            body["max_tokens"] = 500
        return await self.running.http.post(PATHS[wire], json=body)


@asynccontextmanager
async def staged(kind: NodeKind) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        proxies, specs = [], []
        for name in ("a", "b"):
            url = await stack.enter_async_context(listening(echo()))
            proxy = await stack.enter_async_context(fault_proxy(int(url.rsplit(":", 1)[1])))
            proxies.append(proxy)
            wires = ALL_WIRES if kind == "ganglion" else USUAL_WIRES
            specs.append(NodeSpec(name, f"http://127.0.0.1:{proxy.port}", kind, wires=wires))
        running = await stack.enter_async_context(gateway(specs))
        async with asyncio.timeout(10):
            while (await running.http.get("/health")).json()["nodes"]["healthy"] < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield Stage(running, proxies)


def breaking(stage: Stage) -> None:
    """Let whichever node is asked first break off in the middle of what it says."""

    async def once(passage: Passage) -> None:
        for proxy in stage.proxies:
            proxy.fault = None
        said = await passage.answer()
        await passage.say(said[: len(said) * 2 // 3])
        await asyncio.sleep(0.02)
        passage.reset()

    for proxy in stage.proxies:
        proxy.fault, proxy.spoilt = once, 0


@pytest.mark.parametrize("kind", ["ganglion", "openai"])
async def test_a_whole_answer_that_breaks_is_begun_again_elsewhere(kind: NodeKind) -> None:
    async with staged(kind) as stage:
        for wire in WORDS:
            breaking(stage)
            answer = await stage.ask(wire)
            assert sum(proxy.spoilt for proxy in stage.proxies) == 1, wire
            assert answer.status_code == 200, (wire, answer.text)
            assert answer.text.count(TEXT) == 1, (wire, answer.text)


async def test_what_is_stored_is_the_answer_that_was_begun_again() -> None:
    async with staged("openai") as stage:
        breaking(stage)
        answer = (await stage.ask("responses")).json()
        kept = (await stage.running.http.get(f"/v1/responses/{answer['id']}")).json()
        assert kept == answer
        assert [part["text"] for part in kept["output"][0]["content"]] == [TEXT]


async def test_a_stream_that_breaks_after_its_first_text_is_not_begun_again() -> None:
    async with staged("openai") as stage:
        for wire in ("chat", "messages", "responses"):
            breaking(stage)
            answer = await stage.ask(wire, is_stream=True)
            assert sum(proxy.spoilt for proxy in stage.proxies) == 1, wire
            assert "error" in answer.text and TEXT not in answer.text, wire


HALF = [
    response(200, BEGUN, SSE, is_whole=False),
    response(200, BEGUN, SSE),
    response(200, BEGUN + sse({"error": {"message": "died", "code": "engine_failed"}}), SSE),
]


@pytest.mark.parametrize("half", HALF, ids=["cut", "silent end", "engine_failed"])
async def test_the_engine_keeps_a_folded_answer_back_until_it_is_whole(room: Room, half: bytes) -> None:
    async with scripted(half) as a, scripted(WHOLE) as b:
        room.put("a", a.url)
        room.put("b", b.url)
        events = await room.answer(folded())
        assert (len(a.heads), len(b.heads)) == (1, 1)
    assert fold(events).text("text") == "from the script"
    first = next(place for place, event in enumerate(events) if isinstance(event, Started))
    assert {type(event) for event in events[:first]} == {Progress}  # the signs that it goes on


async def test_a_folded_answer_has_two_chances_as_well(room: Room) -> None:
    async with scripted(HALF[0]) as a, scripted(HALF[0]) as b, scripted(WHOLE) as c:
        for name, node in (("a", a), ("b", b), ("c", c)):
            room.put(name, node.url)
        events = await room.answer(folded())
        assert [len(node.heads) for node in (a, b, c)] == [1, 1, 0]
    assert isinstance(events[-1], Failed)
    assert not any(isinstance(event, Delta) for event in events)


async def test_an_answer_that_goes_on_out_of_sight_is_not_late() -> None:
    async def slow() -> AsyncIterator[Progress | Started | Finished]:
        for count in range(8):
            await asyncio.sleep(0.05)
            yield Progress("generated", count, count)

    deadlines = AnswerDeadlines(queue_s=0.2, first_token_s=0.2, idle_s=0.2)
    events = [event async for event in with_deadlines(slow(), deadlines)]  # type: ignore[arg-type,type-var]
    assert len(events) == 8
    assert all(one.done < other.done for one, other in pairwise(events))  # type: ignore[union-attr]


def folded() -> Request:
    return ask(is_folded=True)
