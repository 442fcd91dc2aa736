"""An ASGI app on its sockets: uvicorn with our connections, and without its own idea of signals."""

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
SOCKET_PING_S = 20.0
"""How often a WebSocket is asked for a sign of life, and how long it may take to give one."""
_TICK_S = 1.0
_LAST_WORDS_S, _HASTY_WORDS_S = 2.0, 0.1
"""How long answers may take to reach their clients when the server leaves."""
_POLL_S = 0.002


def uvicorn_config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    """How it is served; raises UnusableCertificate."""
    config = uvicorn.Config(
        app,
        http=protocol_class(settings.max_connections),
        ws=websocket_class(settings.max_body_bytes),
        ws_max_size=settings.max_body_bytes,
        ws_ping_interval=SOCKET_PING_S,
        ws_ping_timeout=SOCKET_PING_S,
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
    """uvicorn without its own idea of signals, that says when it listens and leaves when it is told.

    Its own looks ten times a second whether it is to leave, and takes two tenths more to do it.
    """

    def __init__(self, config: uvicorn.Config, descriptors: DescriptorWatch | None = None) -> None:
        """`descriptors` is for a server that strangers connect to."""
        super().__init__(config)
        self._descriptors = descriptors
        self.listening = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self, *, is_hasty: bool) -> None:
        """Let go of those who are served, when they have heard the end or, in haste, at once."""
        self.should_exit, self.force_exit = True, is_hasty
        self._leaving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # where the date in its answers comes from
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
            async with asyncio.timeout(_HASTY_WORDS_S if self.force_exit else _LAST_WORDS_S):
                while served.connections or served.tasks:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(_POLL_S)
        if not self.force_exit:
            for task in served.tasks:
                task.cancel()


async def until_listening(server: AppServer, serving: asyncio.Task[None]) -> None:
    """Wait until it listens; raises what kept it from that."""
    listening = asyncio.create_task(server.listening.wait())
    await first_of(serving, listening)
    listening.cancel()
    if serving.done():
        serving.result()
