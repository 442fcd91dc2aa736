"""An ASGI app on its sockets: uvicorn with our connections, and without its own signal handling."""

import asyncio
import contextlib
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp

from ganglion.gateway.proxy.descriptors import DescriptorWatch
from ganglion.server.bind import UnusableCertificate
from ganglion.server.life.connection import protocol_class, websocket_class
from ganglion.server.life.signals import first_of
from ganglion.server.settings import ServerSettings

BACKLOG = 2048
_SOCKET_PING_S = 20.0
"""How often a WebSocket is pinged, and how long it may take to answer."""
_TICK_S = 1.0
_FLUSH_S, _HASTY_FLUSH_S = 2.0, 0.1
"""How long answers may take to reach their clients at shutdown, and after a second signal."""
_POLL_S = 0.002


def uvicorn_config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    """uvicorn's configuration; raises UnusableCertificate."""
    config = uvicorn.Config(
        app,
        http=protocol_class(settings.max_connections),
        ws=websocket_class(settings.max_body_bytes),
        ws_max_size=settings.max_body_bytes,
        ws_ping_interval=_SOCKET_PING_S,
        ws_ping_timeout=_SOCKET_PING_S,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # it warns of every client that does not speak HTTP
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=settings.idle_connection_s,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except OSError as error:
        raise UnusableCertificate(error) from None
    return config


class AppServer(uvicorn.Server):
    """uvicorn without its own signal handling, with an event for listening and a prompt shutdown.

    Its own loop checks ten times a second whether to exit, and takes two tenths of a second more to do it.
    """

    def __init__(self, config: uvicorn.Config, descriptors: DescriptorWatch | None = None) -> None:
        """`descriptors` warns before the file descriptors run out."""
        super().__init__(config)
        self._descriptors = descriptors
        self.listening = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self, *, is_hasty: bool) -> None:
        """Shut down once answers have reached their clients or, in haste, at once."""
        self.should_exit, self.force_exit = True, is_hasty
        self._leaving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # which renews the date in the response headers
            if self._descriptors is not None:
                self._descriptors.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        served = self.server_state
        for connection in list(served.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HASTY_FLUSH_S if self.force_exit else _FLUSH_S):
                while served.connections or served.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(_POLL_S)
        if not self.force_exit:
            for task in served.tasks:
                task.cancel()


async def until_listening(server: AppServer, serving: asyncio.Task[None]) -> None:
    """Wait until the server listens; raises why it cannot."""
    listening = asyncio.create_task(server.listening.wait())
    await first_of(serving, listening)
    listening.cancel()
    if serving.done():
        serving.result()
