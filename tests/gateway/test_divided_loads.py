"""A divided model on its way to a node: what that is told, what is promised, and a node that refuses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from loading_node import LoadingNode, listening

from ganglion.core.errors import InsufficientVideoMemory, ModelUnavailable
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.loader import FleetLoader
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.gateway.upstream.pool import ConnectionPools


def wide(model_id: str = "wide", device_mb: int = 6000, **fields: object) -> CatalogueModel:
    return CatalogueModel(id=model_id, tensor_parallel=2, device_mb=device_mb, **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def loader_over(*nodes: LoadingNode, models: tuple[CatalogueModel, ...]) -> AsyncIterator[FleetLoader]:
    pools = ConnectionPools()
    async with listening(*nodes):
        loader = FleetLoader(nodes[0].fleet, FleetCatalogue(models), NodeClient(pools), patience_s=0.3)
        try:
            yield loader
        finally:
            await loader.close()
            pools.close()


async def test_a_node_is_told_how_a_model_is_divided_and_nothing_else() -> None:
    node = LoadingNode("a", Fleet(), cards_mb=(8000,) * 4, total_mb=99_999)
    plain = CatalogueModel(id="plain", memory_mb=100)
    clustered = wide("far", 10**6, executor="ray", pipeline_parallel=4, pinned_on=("a",))
    async with loader_over(node, models=(wide(), plain, clustered)) as loader:
        for name in ("wide", "plain", "far"):
            await loader.load(name)
    assert node.asked == [
        {"model_id": "wide", "tensor_parallel": 2},
        {"model_id": "plain"},
        {"model_id": "far", "tensor_parallel": 2, "pipeline_parallel": 4, "executor": "ray", "pinned": True},
    ]


async def test_two_that_are_asked_for_at_once_are_not_put_on_the_same_devices() -> None:
    sizes = {"one": 12000, "two": 12000, "three": 12000}
    node = LoadingNode("a", Fleet(), cards_mb=(8000,) * 4, sizes_mb=sizes, total_mb=99_999, delay_s=0.6)
    models = tuple(wide(name) for name in sizes)
    async with loader_over(node, models=models) as loader:
        asking = (loader.load(name) for name in sizes)
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
    failed = [outcome for outcome in outcomes if outcome is not None]
    assert [type(outcome) for outcome in failed] == [InsufficientVideoMemory]
    assert "6,000 MB on each of 2 devices, has 4: 2,000, 2,000, 2,000, 2,000 free" in str(failed[0])
    assert len(node.loads) == 2


async def test_a_node_that_refuses_to_divide_it_gives_way_to_another() -> None:
    fleet = Fleet()
    refusing = LoadingNode(
        "a", fleet, cards_mb=(9000, 9000), failing={"wide": (400, "unsupported_parameter")}, total_mb=99_999
    )
    able = LoadingNode("b", fleet, cards_mb=(7000, 7000), sizes_mb={"wide": 12000}, total_mb=99_999)
    async with loader_over(refusing, able, models=(wide(),)) as loader:
        await loader.load("wide")
    assert (refusing.loads, able.loads) == ({"wide": 1}, {"wide": 1})


@pytest.mark.parametrize("code", ["unsupported_parameter", "invalid_value"])
async def test_what_every_node_refuses_is_not_the_fault_of_who_asks(code: str) -> None:
    node = LoadingNode("a", Fleet(), cards_mb=(9000, 9000), failing={"wide": (400, code)})
    async with loader_over(node, models=(wide(),)) as loader:
        with pytest.raises(ModelUnavailable) as raised:
            await loader.load("wide")
    assert raised.value.status == 503
    assert "The node a says: It cannot be." in str(raised.value), "for the operator"
    assert "node a" not in raised.value.message
