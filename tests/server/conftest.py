"""A server on a real socket, around an echo that does what its prompt tells it."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from ganglion.core.engine import ManagedEngine
from ganglion.core.machine import MachineSource
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.server.app import build_node
from ganglion.server.life.serve import Reload, Shutdown, serve
from ganglion.server.life.storage import StoreTarget
from ganglion.server.settings import NO_GATEWAYS, JoinSettings, ServerSettings
from ganglion.sessions.settings import SessionSettings
from support.waiting import until


@dataclass
class Served:
    """A running server and what a test needs to talk to it."""

    engine: ManagedEngine
    url: str
    port: int
    shutdown: Shutdown
    http: httpx.AsyncClient
    ended: asyncio.Task[None] = field(repr=False)
    rpc: str = ""
    """The address of gRPC; empty where nothing listens."""

    def chat(self, content: str = "hello there you", **fields: object) -> dict[str, object]:
        return {"model": "echo", "messages": [{"role": "user", "content": content}]} | fields

    async def post(self, content: str = "hello there you", **fields: object) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=self.chat(content, **fields))

    def slots_used(self) -> int:
        return sum(model.in_flight + model.queued for model in self.engine.models())

    async def until_idle(self, within_s: float = 2.0) -> None:
        await until(lambda: self.slots_used() == 0, within_s)


Serving = Callable[..., AbstractAsyncContextManager[Served]]


def echo(**fields: object) -> EchoEngine:
    return EchoEngine(EchoSettings(**({"allow_directives": True} | fields)))


@pytest.fixture
def serving() -> Serving:
    """Start a server inside the test's own event loop; leaving it shuts it down."""

    @asynccontextmanager
    async def start(
        engine: ManagedEngine | None = None,
        reload: Reload | None = None,
        machine: MachineSource | None = None,
        storage: StoreTarget | None = None,
        sessions: SessionSettings | None = None,
        join: JoinSettings = NO_GATEWAYS,
        **fields: object,
    ) -> AsyncIterator[Served]:
        engine = engine or echo()
        settings = ServerSettings(**({"port": 0, "drain_timeout_s": 0.2} | fields))
        shutdown = Shutdown()
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        rpc: list[str] = []
        ended = asyncio.create_task(
            serve(
                engine,
                settings,
                shutdown=shutdown,
                on_listening=listening.set_result,
                reload=reload,
                machine=machine,
                storage=storage,
                sessions=sessions,
                on_rpc=rpc.append,
                join=join,
            )
        )
        await asyncio.wait({ended, listening}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
        url = listening.result()
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            try:
                yield Served(engine, url, int(url.rsplit(":", 1)[1]), shutdown, http, ended, *rpc)
            finally:
                shutdown.ask()
                shutdown.ask()
                await asyncio.gather(ended, return_exceptions=True)

    return start


@pytest.fixture
def calling() -> Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]:
    """Call an app without a socket between."""

    @asynccontextmanager
    async def start(
        engine: ManagedEngine | None = None, headers: dict[str, str] | None = None, **fields: object
    ) -> AsyncIterator[httpx.AsyncClient]:
        engine = engine or echo()
        await engine.open()
        app = build_node(engine, ServerSettings(**fields))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8080", headers=headers
        ) as http:
            yield http
        await engine.close()

    return start


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine that vouches for itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return certificate, key
