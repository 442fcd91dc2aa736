"""A server on a real socket, around an echo that does what its prompt tells it."""

import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from ganglion.core.engine import ManagedEngine
from ganglion.server.app import build_node
from ganglion.server.settings import ServerSettings
from support.served import Serving, echo, serving


@pytest.fixture(name="serving")
def _serving() -> Serving:
    """Start a server inside the test's own event loop; leaving it shuts it down."""
    return serving


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
