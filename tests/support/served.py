"""A node on a real socket inside the test's own event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx

from ganglion.core.engine import ManagedEngine
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.server.life.serve import Shutdown, serve
from ganglion.server.settings import ServerSettings
from support.waiting import until


@dataclass
class Served:
    """A running server and what a test needs to talk to it."""

    engine: ManagedEngine
    url: str
    shutdown: Shutdown
    ended: asyncio.Task[None] = field(repr=False)
    rpc: str = ""
    """The address of gRPC; empty where nothing listens."""

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @cached_property
    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=20)

    def chat(self, content: str = "hello there you", **fields: object) -> dict[str, object]:
        return {"model": "echo", "messages": [{"role": "user", "content": content}]} | fields

    async def post(self, content: str = "hello there you", **fields: object) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=self.chat(content, **fields))

    def slots_used(self) -> int:
        return sum(model.in_flight + model.queued for model in self.engine.models())

    async def until_idle(self, within_s: float = 2.0) -> None:
        await until(lambda: self.slots_used() == 0, within_s)


Serving = Callable[..., AbstractAsyncContextManager[Served]]
OF_SERVE = ("reload", "machine", "storage", "sessions", "join", "opening", "outbound")


def echo(**fields: Any) -> EchoEngine:
    """An echo that does what its prompt tells it."""
    return EchoEngine(EchoSettings(**({"allow_directives": True} | fields)))


@asynccontextmanager
async def serving(engine: ManagedEngine | None = None, **fields: Any) -> AsyncIterator[Served]:
    """Start a server; leaving the block shuts it down. Fields are `serve`'s, and those of its settings."""
    engine = engine or echo()
    of_serve = {name: fields.pop(name) for name in OF_SERVE if name in fields}
    shutdown = Shutdown()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    rpc: list[str] = []
    ended = asyncio.create_task(
        serve(
            engine,
            ServerSettings(**({"port": 0, "drain_timeout_s": 0.2} | fields)),
            shutdown=shutdown,
            on_listening=listening.set_result,
            on_rpc=rpc.append,
            **of_serve,
        )
    )
    waited: set[asyncio.Future[Any]] = {ended, listening}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        ended.result()
    served = Served(engine, listening.result(), shutdown, ended, *rpc)
    try:
        yield served
    finally:
        if "http" in vars(served):
            await served.http.aclose()
        shutdown.ask()
        shutdown.ask()
        await asyncio.gather(ended, return_exceptions=True)
