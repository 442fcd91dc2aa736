"""A model that only one node has: what clients and operators hear when that node is gone, or is to go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest
from gateways import Running, gateway
from remote_nodes import echo, listening

from ganglion.gateway.node import NodeSpec
from ganglion.gateway.placing.catalogue import parse_catalogue

CATALOGUE = """
[[models]]
id = "chat"
source = "org/chat-GGUF:Q4"
served_as = "chat-q4"
"""
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Stage:
    """A gateway over echo nodes, each of which holds one model and can load no other."""

    gateway: Running
    nodes: dict[str, AsyncExitStack] = field(default_factory=dict)

    async def end(self, name: str) -> None:
        await self.nodes[name].aclose()
        async with asyncio.timeout(15):
            while next(node for node in await self.fleet() if node["name"] == name)["healthy"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def fleet(self) -> list[dict[str, object]]:
        nodes: list[dict[str, object]] = (await self.gateway.http.get("/fleet")).json()["nodes"]
        return nodes

    async def ask(self, **more: object) -> httpx.Response:
        return await self.gateway.http.post("/v1/chat/completions", json=CHAT | more)

    async def drain(self, node: str, **more: object) -> httpx.Response:
        return await self.gateway.http.post("/fleet/drain", json={"node": node, **more})


@asynccontextmanager
async def staged(catalogue: str = CATALOGUE, **nodes: str) -> AsyncIterator[Stage]:
    """Nodes by their names, each with what it holds."""
    async with AsyncExitStack() as stack:
        specs, own = [], {}
        for name, model in nodes.items():
            own[name] = await stack.enter_async_context(AsyncExitStack())
            url = await own[name].enter_async_context(listening(echo(model_id=model)))
            specs.append(NodeSpec(name, url))
        running = await stack.enter_async_context(
            gateway(specs, catalogue=parse_catalogue(catalogue), is_strict=False)
        )
        stage = Stage(running, own)
        async with asyncio.timeout(10):
            while not all(node["healthy"] for node in await stage.fleet()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield stage


@pytest.mark.timeout(60)
async def test_a_promised_model_that_nobody_can_load_is_503_and_unservable() -> None:
    async with staged(a="chat-q4", b="other") as stage:
        assert (await stage.ask()).status_code == 200
        await stage.end("a")
        for _ in range(2):
            refused = await stage.ask()
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (503, "model_unavailable")
            assert int(refused.headers["retry-after"]) > 0 and "fixed" not in error["message"]
        health = (await stage.gateway.http.get("/health")).json()
        assert health["status"] == "degraded"
        assert [each["model"] for each in health["unservable"]] == ["chat", "chat-q4"]
        overview = (await stage.gateway.http.get("/fleet")).json()
        assert overview["status"] == "degraded"  # with which `fleet status` ends with 1


@pytest.mark.timeout(60)
async def test_a_promised_model_is_503_also_when_no_node_is_left_at_all() -> None:
    async with staged(a="chat-q4") as stage:
        await stage.end("a")
        refused = await stage.ask()
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert (await stage.ask(model="never heard of")).status_code == 404
        health = (await stage.gateway.http.get("/health")).json()
        assert "chat" in [each["model"] for each in health["unservable"]]


@pytest.mark.timeout(60)
async def test_a_held_model_of_the_catalogue_is_listed_under_its_id() -> None:
    async with staged(a="chat-q4", b="other") as stage:
        listed = (await stage.gateway.http.get("/v1/models")).json()["data"]
        assert sorted(each["id"] for each in listed) == ["chat", "other"]
        assert (await stage.ask(model="chat-q4")).status_code == 200


@pytest.mark.timeout(60)
async def test_the_only_holder_is_not_drained_unless_that_is_wanted() -> None:
    async with staged(a="chat-q4", b="other") as stage:
        refused = await stage.drain("a")
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (409, "only_holder")
        assert "No other node than a holds chat-q4" in error["message"]
        assert (await stage.ask()).status_code == 200  # nothing was changed
        done = await stage.drain("a", force=True)
        assert done.status_code == 200
        steps = done.json()["steps"]
        assert steps[0] == "a takes no new work" and "chat-q4 is served by no node now" in steps[1]
        assert (await stage.ask()).status_code == 503
        assert (await stage.drain("a", undo=True)).status_code == 200
        assert (await stage.ask()).status_code == 200


@pytest.mark.timeout(60)
async def test_a_node_whose_models_others_have_is_drained_at_once() -> None:
    async with staged(a="chat-q4", b="chat-q4") as stage:
        done = await stage.drain("a")
        assert done.json()["steps"] == ["a takes no new work", "chat-q4 is served elsewhere"]
        assert (await stage.ask()).status_code == 200
        assert (await stage.drain("b")).status_code == 409


@pytest.mark.timeout(60)
async def test_a_fallback_is_enough_to_let_a_node_go() -> None:
    stand_in = CATALOGUE + 'fallbacks = ["small"]\n\n[[models]]\nid = "small"\nserved_as = "other"\n'
    async with staged(stand_in, a="chat-q4", b="other") as stage:
        done = await stage.drain("a")
        assert done.json()["steps"][1] == "chat-q4 is answered for by a fallback"
        assert (await stage.ask()).status_code == 200
