"""An ASGI app on a Unix socket, for as long as it is needed."""

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

from starlette.types import ASGIApp

from ganglion.server.app_server import AppServer, app_config, until_listening
from ganglion.server.bind import StartRefused
from ganglion.server.settings import ServerSettings


@contextlib.asynccontextmanager
async def served(app: ASGIApp, settings: ServerSettings, path: Path) -> AsyncGenerator[None, None]:
    """While inside, the app answers there; whatever a process before left at that path is gone."""
    with _bound(path) as listener:
        plain = dataclasses.replace(settings, tls_cert=None, tls_key=None)
        server = AppServer(app_config(app, plain))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await until_listening(server, serving)
            yield
        finally:
            server.leave(is_hasty=True)
            await asyncio.gather(serving, return_exceptions=True)


def _bound(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise StartRefused(
            f"The socket {path} cannot be made: {error.strerror or error}.",
            hint="Set TMPDIR to a short path that can be written to.",
        ) from None
    return listener
