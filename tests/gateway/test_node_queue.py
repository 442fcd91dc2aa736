"""Requests that wait for a full node: bounded, fair between tenants, and gone when their clients are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateways import Running, gateway
from greedy_server import Greedy, greedy_node
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gateway_access import keyed, shown

from ganglion.core.errors import Overloaded
from ganglion.gateway.failover import RunningCall
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.node_queue import NodeQueue
from ganglion.gateway.node import NodeSpec, NodeView, Replica
from support.examples import examples
from support.waiting import settled, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
A = frozenset(("a",))


async def waiting(queue: NodeQueue, tenant: str, served: list[str], nodes: frozenset[str] = A) -> None:
    await queue.room(queue.waiter(tenant), nodes)
    served.append(tenant)


async def test_tenants_take_turns_however_much_one_of_them_asks() -> None:
    queue, served = NodeQueue(), list[str]()
    tasks = [asyncio.create_task(waiting(queue, "many", served)) for _ in range(6)]
    await settled()
    tasks += [asyncio.create_task(waiting(queue, tenant, served)) for tenant in ("few", "one", "few")]
    await settled()
    for _ in range(9):
        assert queue.hand_over("a")
        await settled()
    assert served == ["many", "few", "one", "many", "few", "many", "many", "many", "many"]
    assert not queue.hand_over("a") and not len(queue)
    await asyncio.gather(*tasks)


async def test_a_place_goes_only_to_those_who_wait_for_its_node() -> None:
    queue, served = NodeQueue(), list[str]()
    tasks = [
        asyncio.create_task(waiting(queue, "first", served)),
        asyncio.create_task(waiting(queue, "second", served, frozenset(("a", "b")))),
    ]
    await settled()
    assert queue.hand_over("b")
    await settled()
    assert served == ["second"] and not queue.hand_over("b")
    assert queue.hand_over("a")
    await asyncio.gather(*tasks)


async def test_who_leaves_frees_its_turn_also_when_its_place_was_just_handed_over() -> None:
    queue, served = NodeQueue(), list[str]()
    freed: list[str] = []
    queue.on_free = freed.append
    first = asyncio.create_task(waiting(queue, "gone", served))
    second = asyncio.create_task(waiting(queue, "here", served))
    await settled()
    assert queue.hand_over("a")
    first.cancel()  # before it could know
    await settled()
    assert served == ["here"] and not len(queue)
    assert freed == ["a"]  # once, by the one who got it
    third = asyncio.create_task(waiting(queue, "gone", served))
    await settled()
    third.cancel()
    await settled()
    assert not len(queue) and not queue.hand_over("a")
    await asyncio.gather(first, second, third, return_exceptions=True)


async def test_a_full_queue_takes_from_whoever_has_most() -> None:
    queue, served = NodeQueue(max_requests=4), list[str]()
    many = [asyncio.create_task(waiting(queue, "many", served)) for _ in range(4)]
    await settled()
    with pytest.raises(Overloaded) as refused:
        await waiting(queue, "many", served)
    assert refused.value.retry_after_s == 5
    few = [asyncio.create_task(waiting(queue, "few", served)) for _ in range(3)]
    await settled()
    assert len(queue) == 4
    outcomes = [task.exception() if task.done() else None for task in (*many, *few)]
    assert [type(each).__name__ for each in outcomes] == [
        "NoneType", "NoneType", "Overloaded", "Overloaded", "NoneType", "NoneType", "Overloaded"
    ]  # fmt: skip
    for _ in range(4):
        queue.hand_over("a")
    await asyncio.gather(*many, *few, return_exceptions=True)
    assert sorted(served) == ["few", "few", "many", "many"]


async def test_waiting_has_an_end() -> None:
    queue = NodeQueue(max_wait_s=0.05)
    with pytest.raises(Overloaded, match=r"within 0\.05 s") as refused:
        await waiting(queue, "t", [])
    assert refused.value.retry_after_s == 5 and not len(queue)


def node(name: str, cap: int | None, *, is_healthy: bool = True) -> NodeView:
    spec = NodeSpec(name, f"http://{name}", max_in_flight=cap)
    return NodeView(spec, is_healthy=is_healthy, replicas=(Replica("m", "loaded"),))


@settings(max_examples=examples(80))
@given(st.lists(st.sampled_from(["begin", "end", "leave"]), max_size=60), st.integers(1, 3))
def test_a_node_never_has_more_than_its_cap_and_nobody_waits_beside_a_free_place(
    steps: list[str], cap: int
) -> None:
    asyncio.run(_play(steps, cap))


async def _play(steps: list[str], cap: int) -> None:
    fleet = Fleet()
    view = node("a", cap)
    fleet.put(view)
    tasks: list[asyncio.Task[None]] = []
    calls: list[RunningCall] = []
    running = 0

    async def request() -> None:
        nonlocal running
        waiter = fleet.queue.waiter("t")
        try:
            while not fleet.has_room(view):
                await fleet.queue.room(waiter, A)
        finally:
            fleet.queue.leave(waiter)
        calls.append(RunningCall(view.spec, fleet.losses))
        fleet.count_in("a", calls[-1])
        running += 1

    for step in steps:
        if step == "begin":
            tasks.append(asyncio.create_task(request()))
        elif step == "end" and running:
            running -= 1
            fleet.count_out("a", calls.pop())
        elif step == "leave" and tasks:
            tasks.pop().cancel()
        if len(tasks) % 2:
            await settled()
            assert running <= cap
    await settled()
    assert running <= cap and fleet.in_flight["a"] == running
    assert not len(fleet.queue) or running == cap
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_who_waits_looks_again_when_another_node_comes() -> None:
    fleet = Fleet()
    fleet.put(node("a", 1))
    fleet.in_flight["a"] += 1
    task = asyncio.create_task(waiting(fleet.queue, "t", []))
    await settled()
    fleet.put(replace(node("a", 1), last_heard_s=5.0))  # nothing that matters
    await settled()
    assert not task.done()
    fleet.put(node("b", 1))
    await task
    assert fleet.in_flight["a"] == 1


@asynccontextmanager
async def capped(folder: Path, greedy: Greedy, **fields: Any) -> AsyncIterator[Running]:
    storage = await keyed(folder, many={}, few={})
    server, spec = await greedy_node(greedy, max_in_flight=4)
    try:
        async with gateway([spec], storage=storage, is_strict=False, fields=fields) as running:
            yield running
    finally:
        if greedy.hold is not None:
            greedy.hold.set()
        await server.close()


async def ask(running: Running, key: str = "many", path: str = "/v1/chat/completions") -> httpx.Response:
    body = CHAT if path != "/v1/responses" else {"model": "m", "input": "hello", "max_output_tokens": 5}
    return await running.http.post(path, json=body, headers=shown(key))


@pytest.mark.timeout(60)
async def test_forty_requests_for_a_server_that_takes_four_are_all_answered(tmp_path: Path) -> None:
    greedy = Greedy(hold=asyncio.Event())
    async with capped(tmp_path, greedy) as running:
        paths = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/chat/completions"] * 10
        asked = [asyncio.create_task(ask(running, path=path)) for path in paths]
        await until(lambda: greedy.running >= 4, 10)
        assert greedy.hold is not None
        greedy.hold.set()
        answers = await asyncio.gather(*asked)
        assert [each.status_code for each in answers] == [200] * 40
        assert greedy.most_running == 4


@pytest.mark.timeout(60)
async def test_a_full_server_is_503_after_the_deadline_and_its_model_is_not_called_unservable(
    tmp_path: Path,
) -> None:
    greedy = Greedy(hold=asyncio.Event())
    async with capped(tmp_path, greedy, queue_s=0.3, queue_requests=3) as running:
        asked = [asyncio.create_task(ask(running)) for _ in range(4)]
        await until(lambda: greedy.running >= 4, 10)
        answers = await asyncio.gather(*(ask(running) for _ in range(6)))
        assert {each.status_code for each in answers} == {503}
        assert {each.json()["error"]["code"] for each in answers} == {"overloaded"}
        assert {each.headers["retry-after"] for each in answers} == {"5"}
        health = (await running.http.get("/health", headers=shown("few"))).json()
        assert health["unservable"] == []
        assert greedy.hold is not None
        greedy.hold.set()
        assert [each.status_code for each in await asyncio.gather(*asked)] == [200] * 4


@pytest.mark.timeout(60)
async def test_a_client_that_leaves_the_queue_is_asked_for_nowhere(tmp_path: Path) -> None:
    greedy = Greedy(hold=asyncio.Event())
    async with capped(tmp_path, greedy) as running:
        asked = [asyncio.create_task(ask(running)) for _ in range(4)]
        await until(lambda: greedy.running >= 4, 10)
        leaving = [asyncio.create_task(ask(running)) for _ in range(5)]
        await asyncio.sleep(0.2)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        last = asyncio.create_task(ask(running, "few"))
        await asyncio.sleep(0.2)
        assert greedy.hold is not None
        greedy.hold.set()
        assert [each.status_code for each in await asyncio.gather(*asked, last)] == [200] * 5
        assert len(greedy.bodies) == 5
