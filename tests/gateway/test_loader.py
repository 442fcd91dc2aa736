"""One load however many ask, in turn, and nobody busy leaves: against nodes on real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from loading_node import LoadingNode, listening

from ganglion.core.errors import (
    GanglionError,
    InsufficientMemory,
    InvalidValue,
    LoadFailed,
    ModelNotFound,
    ModelUnavailable,
    ShuttingDown,
    UpstreamUnavailable,
)
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import DeviceMemory, NodeSpec, NodeView, Replica
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.loader import FleetLoader
from ganglion.gateway.placing.reservations import GRACE_S
from ganglion.gateway.routing.decision import ChosenNode, ColdModel, RoutingRequest
from ganglion.gateway.routing.router import Router
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency
from ganglion.registry.settings import ResidencySettings
from support.served import serving


def model(model_id: str, memory_mb: int = 100, **fields: object) -> CatalogueModel:
    return CatalogueModel(id=model_id, memory_mb=memory_mb, **fields)  # type: ignore[arg-type]


class Stage:
    """A fleet of loading nodes and the loader over it."""

    def __init__(self, fleet: Fleet, *models: CatalogueModel, **settings: float) -> None:
        self.pools = ConnectionPools()
        self.catalogue = FleetCatalogue(models)
        self.poked: list[str] = []
        self.router = Router(fleet, self.catalogue)
        self.loader = FleetLoader(
            fleet,
            self.catalogue,
            NodeClient(self.pools),
            probe_now=self.poked.append,
            **settings,  # type: ignore[arg-type]
        )

    async def close(self) -> None:
        await self.loader.close()
        self.pools.close()


@asynccontextmanager
async def staged(
    *nodes: LoadingNode, models: tuple[CatalogueModel, ...], **settings: float
) -> AsyncIterator[Stage]:
    async with listening(*nodes):
        stage = Stage(nodes[0].fleet, *models, **settings)
        try:
            yield stage
        finally:
            await stage.close()


async def test_a_thousand_who_ask_cause_one_load() -> None:
    node = LoadingNode("a", Fleet(), delay_s=0.1)
    async with staged(node, models=(model("m"),)) as stage:
        assert isinstance(stage.router.choose(RoutingRequest("m", "chat")), ColdModel)
        await asyncio.gather(*(stage.loader.load("m") for _ in range(1000)))
        assert isinstance(stage.router.choose(RoutingRequest("m", "chat")), ChosenNode)
        await stage.loader.load("m")
        assert node.loads == {"m": 1}
        assert "a" in stage.poked


async def test_who_comes_while_the_node_is_seen_loading_waits_too() -> None:
    fleet = Fleet()
    node = LoadingNode("a", fleet, delay_s=0.1)
    async with staged(node, models=(model("m"),)) as stage:
        asking = [asyncio.create_task(stage.loader.load("m"))]
        await asyncio.sleep(0.02)
        node.hold("m", "loading")
        assert stage.router.choose(RoutingRequest("m", "chat")) == ColdModel("m")
        asking += [asyncio.create_task(stage.loader.load("m")) for _ in range(9)]
        await asyncio.gather(*asking)
        assert node.loads == {"m": 1}
        assert not fleet.loading


async def test_a_load_on_a_certain_node_serves_whoever_asks_for_any() -> None:
    fleet = Fleet()
    a, b = LoadingNode("a", fleet, total_mb=9000), LoadingNode("b", fleet, delay_s=0.05)
    async with staged(a, b, models=(model("m"),)) as stage:
        placed = asyncio.create_task(stage.loader.load_on("m", "b"))
        await asyncio.sleep(0.01)
        await stage.loader.load("m")
        await placed
        assert (a.loads, b.loads) == ({}, {"m": 1})


async def test_a_load_that_fails_is_told_to_all_and_tried_again_later() -> None:
    node = LoadingNode("a", Fleet(), delay_s=0.05, failing={"m": (422, "load_failed")})
    async with staged(node, models=(model("m"),), hold_off_s=0.2) as stage:
        asking = (stage.loader.load("m") for _ in range(1000))
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {LoadFailed}
        assert "The node a says: It cannot be." in str(outcomes[0])
        with pytest.raises(LoadFailed):
            await stage.loader.load("m")
        assert node.loads == {"m": 1}
        node.failing.clear()
        await asyncio.sleep(0.25)
        await stage.loader.load("m")
        assert node.loads == {"m": 2}


async def test_ten_models_on_two_places_all_get_their_turn_and_no_busy_one_leaves() -> None:
    fleet = Fleet()
    nodes = [LoadingNode(name, fleet, total_mb=100, delay_s=0.002) for name in "ab"]
    models = tuple(model(f"m{number}") for number in range(10))
    async with staged(*nodes, models=models) as stage:

        async def use(name: str) -> None:
            for _ in range(400):
                decision = stage.router.choose(RoutingRequest(name, "chat"))
                if isinstance(decision, ChosenNode):
                    node = next(node for node in nodes if node.name == decision.node.name)
                    if name in node.held:
                        node.busy[name] += 1
                        await asyncio.sleep(0.005)
                        node.busy[name] -= 1
                        node.hold(name)
                        return
                elif isinstance(decision, ColdModel):
                    await stage.loader.load(name)
                await asyncio.sleep(0)
            raise AssertionError(f"{name} was never served")

        async with asyncio.timeout(8):
            await asyncio.gather(*(use(each.id) for each in models for _ in range(3)))
        for node in nodes:
            assert len(node.held) <= 1
        assert sum(sum(node.unloads.values()) for node in nodes) >= 8


async def test_who_became_busy_since_the_last_poll_is_left_alone() -> None:
    fleet = Fleet()
    node = LoadingNode("a", fleet, total_mb=200)
    async with staged(node, models=(model("m"), model("x"), model("y"))) as stage:
        node.hold("x")
        node.hold("y")
        node.busy["x"] = 1  # the fleet has not heard of it
        await stage.loader.load("m")
        assert node.unloads == {"y": 1}


async def test_a_load_waits_for_somebody_to_become_idle() -> None:
    node = LoadingNode("a", Fleet(), total_mb=100)
    async with staged(node, models=(model("m"), model("x"))) as stage:
        node.busy["x"] = 1
        node.hold("x")
        waiting = asyncio.create_task(stage.loader.load("m"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        node.busy["x"] = 0
        node.hold("x")
        await asyncio.wait_for(waiting, 2)
        assert list(node.held) == ["m"]


async def test_patience_ends_with_every_node_s_reason() -> None:
    node = LoadingNode("a", Fleet(), total_mb=100)
    async with staged(node, models=(model("m"), model("x"), model("vast", 999)), patience_s=0.05) as stage:
        node.busy["x"] = 1
        node.hold("x")
        with pytest.raises(InsufficientMemory, match="held by the busy x") as caught:
            await stage.loader.load("m")
        assert caught.value.extras == {"free_mb": 0, "required_mb": 100}
        with pytest.raises(InsufficientMemory, match="needs 999 MB"):
            await stage.loader.load("vast")
        assert not node.loads


async def test_whoever_leaves_does_not_take_the_load_along() -> None:
    node = LoadingNode("a", Fleet(), delay_s=0.1)
    async with staged(node, models=(model("m"),)) as stage:
        leaving = asyncio.create_task(stage.loader.load("m"))
        await asyncio.sleep(0.02)
        leaving.cancel()
        staying = asyncio.create_task(stage.loader.load("m"))
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await staying
        assert node.loads == {"m": 1}


async def test_a_node_that_fails_gives_way_to_the_next_best() -> None:
    fleet = Fleet()
    broken = LoadingNode("a", fleet, total_mb=900, failing={"m": (500, "engine_failed")})
    dead = LoadingNode("b", fleet, total_mb=800)
    good = LoadingNode("c", fleet, total_mb=700)
    async with staged(broken, dead, good, models=(model("m"),)) as stage:
        view = fleet.nodes["b"]
        fleet.put(replace(view, spec=replace(view.spec, url="http://127.0.0.1:9")))
        await stage.loader.load("m")
        assert (broken.loads, dead.loads, good.loads) == ({"m": 1}, {}, {"m": 1})


async def test_when_all_fail_the_last_one_is_heard() -> None:
    fleet = Fleet()
    nodes = [LoadingNode(name, fleet, failing={"m": (500, "engine_failed")}) for name in "ab"]
    async with staged(*nodes, models=(model("m"),)) as stage:
        with pytest.raises(UpstreamUnavailable, match="The node b says"):
            await stage.loader.load("m")
        assert [node.loads["m"] for node in nodes] == [1, 1]


async def test_two_models_asked_for_at_once_are_not_given_one_place() -> None:
    fleet = Fleet()
    nodes = [LoadingNode(name, fleet, total_mb=150, delay_s=0.05) for name in "ab"]
    async with staged(*nodes, models=(model("m"), model("n"))) as stage:
        await asyncio.gather(stage.loader.load("m"), stage.loader.load("n"))
        assert sorted([*nodes[0].held, *nodes[1].held]) == ["m", "n"]
        assert nodes[0].loads.total() == nodes[1].loads.total() == 1


async def test_what_a_node_calls_it_is_learned() -> None:
    node = LoadingNode("a", Fleet(), names={"o/r:Q8": "file-Q8"})
    async with staged(node, models=(model("m", source="o/r:Q8"),)) as stage:
        await stage.loader.load("m")
        assert node.fleet.learned == {("a", "file-Q8"): "m"}
        decision = stage.router.choose(RoutingRequest("m", "chat"))
        assert isinstance(decision, ChosenNode)
        assert decision.model == "file-Q8"
        await stage.loader.unload_from("m", "a")
        assert node.unloads == {"file-Q8": 1}


async def test_a_model_that_only_a_node_lists_is_loaded_there() -> None:
    fleet = Fleet()
    a, b = LoadingNode("a", fleet, total_mb=9000), LoadingNode("b", fleet)
    async with staged(a, b, models=()) as stage:
        b.hold("own", "unloaded")
        await stage.loader.load("own")
        assert (a.loads, b.loads) == ({}, {"own": 1})
        with pytest.raises(ModelNotFound):
            await stage.loader.load("nobody's")


async def test_a_replica_is_loaded_elsewhere_once_and_names_that_are_wrong_are_named() -> None:
    fleet = Fleet()
    sizes = {"m": 40, "n": 40, "o": 40}
    a, b = LoadingNode("a", fleet, sizes_mb=sizes), LoadingNode("b", fleet, sizes_mb=sizes, total_mb=50)
    async with staged(a, b, models=(model("m", 40), model("n", 40), model("o", 40))) as stage:
        a.hold("n")
        b.busy["m"] = 1
        b.hold("m")
        (replica,) = fleet.nodes["b"].replicas
        assert await stage.loader.load_elsewhere("b", replica)
        assert sorted(a.held) == ["m", "n"]
        assert not await stage.loader.load_elsewhere("b", replica)
        with pytest.raises(InvalidValue, match="no node 'z'") as caught:
            await stage.loader.load_on("m", "z")
        assert caught.value.hint == "There are: a, b."
        with pytest.raises(ModelNotFound):
            await stage.loader.unload_from("o", "b")


async def test_closing_ends_the_waiting_and_not_the_nodes_work() -> None:
    node = LoadingNode("a", Fleet(), delay_s=0.1)
    async with staged(node, models=(model("m"),)) as stage:
        asking = [asyncio.create_task(stage.loader.load("m")) for _ in range(3)]
        await asyncio.sleep(0.02)
        assert stage.loader.is_loading("m")
        await stage.loader.close()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ShuttingDown}
        with pytest.raises(ShuttingDown):
            await stage.loader.load("m")


@asynccontextmanager
async def real_node(*names: str) -> AsyncIterator[str]:
    """One of ours, which holds two echoes at most."""
    candidates = [
        Candidate(
            name, build_without_options(lambda name=name: EchoEngine(EchoSettings(name))), engine="echo"
        )
        for name in names
    ]
    engine = Residency(
        (), candidates, free_bytes=lambda: 0, settings=ResidencySettings(max_models=2, auto_load=False)
    )
    async with serving(engine, has_grpc=False) as node:
        yield node.url


async def test_a_node_of_ours_loads_lets_go_and_refuses_as_the_loader_expects() -> None:
    async with real_node("one", "two") as url:
        fleet = Fleet()
        spec = NodeSpec("a", url)

        def hear(*loaded: str) -> None:
            replicas = tuple(Replica(name, "loaded", memory_mb=50, last_used_s=1.0) for name in loaded)
            rooms = (DeviceMemory(-1, "cpu", 100, 100 - 50 * len(loaded)),)
            fleet.put(NodeView(spec, is_healthy=True, replicas=replicas, devices=rooms))

        hear()
        stage = Stage(fleet, model("one", 50), model("two", 60), model("three", 10))
        try:
            loading = asyncio.create_task(stage.loader.load("one"))
            await asyncio.sleep(0.1)
            hear("one")
            await asyncio.wait_for(loading, 2)
            loading = asyncio.create_task(stage.loader.load("two"))
            await asyncio.sleep(GRACE_S + 0.2)
            hear("two")
            await asyncio.wait_for(loading, 2)
            with pytest.raises(GanglionError) as caught:
                await stage.loader.load("three")
            assert isinstance(caught.value, ModelUnavailable) and caught.value.retry_after_s
            assert "one" not in caught.value.message and "Here: one, two" in str(caught.value)
            answer = await NodeClient(stage.pools).call(spec, "GET", "/models", timeout_s=5)
            assert b'"id":"one","engine":"echo","status":"unloaded"' in answer.body
            assert b'"id":"two","engine":"echo","status":"loaded"' in answer.body
        finally:
            await stage.close()


async def test_a_model_goes_by_any_of_its_names() -> None:
    fleet = Fleet()
    here, there = LoadingNode("a", fleet), LoadingNode("b", fleet)
    async with staged(here, there, models=(model("small", source="org/small", aliases=("gpt",)),)) as stage:
        for node in (here, there):
            own = Replica("own", "unloaded", aliases=("Nick",), memory_mb=1)
            fleet.put(replace(fleet.nodes[node.name], replicas=(own,)))
        await stage.loader.load_on("nick", "a")
        assert dict(here.loads) == {"own": 1}
        assert stage.loader.holders("NICK") == ("a",)
        await stage.loader.load_on("GPT", "b")
        assert stage.loader.holders("gpt") == stage.loader.holders("small") == ("b",)
        with pytest.raises(ModelNotFound):
            stage.loader.holders("nobody")
