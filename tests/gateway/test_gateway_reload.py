"""A gateway's configuration, read again while it runs: who is in the fleet, what it offers, who may ask."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx
from gateways import Running, echoes, gateway

from ganglion.core.errors import InvalidValue
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.placing.catalogue import FleetCatalogue, parse_catalogue
from ganglion.server.gateway.setup import GatewaySetup
from ganglion.server.settings import ServerSettings
from support.hangups import hang_up


@dataclass
class Operator:
    """Writes configurations, some of them wrong, and has them read."""

    nodes: tuple[NodeSpec, ...] = ()
    catalogue: FleetCatalogue = FleetCatalogue()
    api_keys: tuple[str, ...] = ()
    is_wrong: bool = False
    reads: int = 0

    def read(self) -> GatewaySetup:
        self.reads += 1
        if self.is_wrong:
            raise InvalidValue("Two nodes are called a.", hint="Name them.")
        server = ServerSettings(api_keys=self.api_keys)
        return GatewaySetup(server, nodes=self.nodes, catalogue=self.catalogue)

    async def reload(self) -> None:
        await hang_up(lambda: self.reads)


@asynccontextmanager
async def operated(operator: Operator, **fields: object) -> AsyncIterator[Running]:
    """A gateway that reads what this operator writes."""
    async with gateway(operator.nodes, reload=operator.read, **fields) as running:  # type: ignore[arg-type]
        yield running


async def nodes_of(running: Running) -> dict[str, bool]:
    """Whether each node of the fleet is healthy."""
    told = (await running.http.get("/fleet")).json()
    return {node["name"]: node["healthy"] for node in told["nodes"]}


async def until_healthy(running: Running, *names: str) -> None:
    async with asyncio.timeout(5):
        while await nodes_of(running) != dict.fromkeys(names, True):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def chat(content: str, **fields: object) -> dict[str, object]:
    return {"model": "echo", "messages": [{"role": "user", "content": content}], **fields}


async def test_declared_nodes_come_and_go_and_what_runs_on_one_that_goes_is_finished() -> None:
    async with echoes("a", "b") as (first, second):
        operator = Operator((first,))
        async with operated(operator) as running:
            body = chat("!echo delay=0.02\n" + "word " * 20, stream=True)
            async with running.http.stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                operator.nodes = (second,)
                await operator.reload()
                await until_healthy(running, "b")
                rest = [line async for line in lines]
            assert len(rest) > 40 and "data: [DONE]" in rest
            said = await running.http.post("/v1/chat/completions", json=chat("hello"))
            assert said.status_code == 200
            operator.nodes = (first, second)
            await operator.reload()
            await until_healthy(running, "b", "a")


async def test_a_node_that_moved_is_asked_where_it_is_now() -> None:
    async with echoes("a", "elsewhere") as (before, after):
        operator = Operator((before,))
        async with operated(operator) as running:
            operator.nodes = (replace(after, name="a"),)
            await operator.reload()
            await until_healthy(running, "a")
            told = (await running.http.get("/fleet")).json()
            assert [node["url"] for node in told["nodes"]] == [after.url]


async def test_another_catalogue_is_offered_and_listed() -> None:
    async with echoes("a") as nodes:
        operator = Operator(nodes, parse_catalogue('[[models]]\nid = "old"\naliases = ["small"]\n'))
        async with operated(operator, catalogue=operator.catalogue) as running:
            assert await listed(running.http) >= {"old"}
            operator.catalogue = parse_catalogue('[[models]]\nid = "echo"\naliases = ["small"]\n')
            await operator.reload()
            assert "old" not in await listed(running.http)
            said = await running.http.post("/v1/chat/completions", json=chat("hello", model="small"))
            assert said.status_code == 200


async def listed(http: httpx.AsyncClient) -> set[str]:
    return {model["id"] for model in (await http.get("/v1/models")).json()["data"]}


async def test_keys_change_and_a_wrong_configuration_changes_nothing(caplog) -> None:
    async with echoes("a") as nodes:
        operator = Operator(nodes, api_keys=("first",))
        async with operated(operator, api_keys=("first",)) as running:

            async def statuses() -> list[int]:
                asked = [
                    running.http.get("/v1/models", headers=running.as_(key)) for key in ("first", "second")
                ]
                return [(await each).status_code for each in asked]

            operator.api_keys, operator.is_wrong = ("second",), True
            await operator.reload()
            assert await statuses() == [200, 401]
            assert "the configuration was not reloaded: Two nodes are called a." in caplog.text
            operator.is_wrong = False
            await operator.reload()
            assert await statuses() == [401, 200]


async def test_taking_the_last_key_from_a_bind_that_others_reach_is_refused(caplog) -> None:
    operator = Operator(api_keys=("first",))
    async with operated(operator, api_keys=("first",), host="0.0.0.0") as running:
        operator.api_keys = ()
        await operator.reload()
        url = running.url.replace("0.0.0.0", "127.0.0.1") + "/v1/models"
        assert (await running.http.get(url)).status_code == 401
        assert (await running.http.get(url, headers=running.as_("first"))).status_code == 200
        assert "no key any more" in caplog.text


async def test_a_hundred_reloads_under_load_drop_nothing() -> None:
    async with echoes("a", "b") as both:
        operator = Operator(both)
        async with operated(operator) as running:
            is_over = False
            statuses: list[int] = []

            async def keep_asking() -> None:
                while not is_over:
                    answer = await running.http.post("/v1/chat/completions", json=chat("one two three"))
                    statuses.append(answer.status_code)

            clients = [asyncio.create_task(keep_asking()) for _ in range(4)]
            await until_healthy(running, "a", "b")
            for number in range(100):
                operator.is_wrong = number % 5 == 0
                operator.nodes = both[: 1 + number % 3 // 2]  # the second one comes and goes
                await operator.reload()
            is_over = True
            await asyncio.gather(*clients)
            assert operator.reads == 100
            assert len(statuses) > 20
            assert set(statuses) == {200}
