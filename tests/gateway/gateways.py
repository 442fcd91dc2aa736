"""Whole gateways inside the test's own process, over nodes inside it too."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx
from remote_nodes import echo, listening

from ganglion.gateway.node import NodeSpec
from ganglion.gateway.placing.catalogue import FleetCatalogue
from ganglion.gateway.settings import GatewaySettings
from ganglion.server.gateway.lifecycle import serve_gateway
from ganglion.server.gateway.setup import GatewaySetup, Reload
from ganglion.server.life.signals import Shutdown
from ganglion.server.life.storage import StoreTarget
from ganglion.server.settings import ServerSettings

MEMORY = StoreTarget(":memory:")


@dataclass
class Running:
    """A gateway that runs, and what a test needs to talk to it."""

    url: str
    http: httpx.AsyncClient
    shutdown: Shutdown
    lines: list[str] = field(default_factory=list)
    """Of its request log."""

    def as_(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    async def until_ready(self, within_s: float = 5.0) -> None:
        """Wait until it has heard of a node."""
        async with asyncio.timeout(within_s):
            while (await self.http.get("/health/ready")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def gateway(
    nodes: Sequence[NodeSpec] = (),
    *,
    storage: StoreTarget | None = MEMORY,
    catalogue: FleetCatalogue | None = None,
    node_key: str | None = None,
    reload: Reload | None = None,
    first_byte_s: float = 900.0,
    poll_s: float = 2.0,
    fields: dict[str, object] | None = None,
    **server: object,
) -> AsyncIterator[Running]:
    """A gateway over these nodes, which has heard of one where there are any; `fields` are its settings'."""
    shutdown = Shutdown()
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    lines: list[str] = []
    of_server = {"port": 0, "has_grpc": False, "drain_timeout_s": 0.2, "is_strict": True, **server}
    settings = GatewaySetup(
        ServerSettings(**of_server),  # type: ignore[arg-type]
        GatewaySettings(
            node_key=node_key,
            poll_s=poll_s,
            first_byte_s=first_byte_s,
            idle_s=min(first_byte_s, 300.0),
            **(fields or {}),  # type: ignore[arg-type]
        ),
        nodes=tuple(nodes),
        catalogue=catalogue or FleetCatalogue(),
        storage=storage,
        request_log=lines.append,
    )
    serving = asyncio.create_task(
        serve_gateway(
            settings, shutdown=shutdown, on_listening=lambda url, _: told.set_result(url), reload=reload
        )
    )
    try:
        await asyncio.wait({serving, told}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        async with httpx.AsyncClient(base_url=told.result(), timeout=20) as http:
            running = Running(told.result(), http, shutdown, lines)
            if nodes:
                await running.until_ready()
            yield running
    finally:
        shutdown.ask()
        shutdown.ask()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def echoes(*names: str, **settings: object) -> AsyncIterator[tuple[NodeSpec, ...]]:
    """A node for each name, each with the same echo."""
    async with AsyncExitStack() as stack:
        specs = [
            NodeSpec(name, await stack.enter_async_context(listening(echo(), **settings))) for name in names
        ]
        yield tuple(specs)


@asynccontextmanager
async def fleet(*names: str, node_key: str = "between-us", **fields: object) -> AsyncIterator[Running]:
    """A gateway over echoes that believe it."""
    async with echoes(*(names or ("a",)), gateway_keys=(node_key,)) as specs:
        nodes = [replace(spec, api_key=node_key) for spec in specs]
        async with gateway(nodes, node_key=node_key, **fields) as running:  # type: ignore[arg-type]
            yield running
