"""Serves an ASGI app on a Unix socket, in a folder that only this user may read."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

from msgspec import structs
from starlette.types import ASGIApp

from ganglion.server.bind import StartRefused
from ganglion.server.life.app_server import AppServer, until_listening, uvicorn_config
from ganglion.server.settings import ServerSettings

PREFIX = "ganglion-gateway-"


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """A new folder, removed at the end; one that a killed gateway left is removed at the next start."""
    _sweep(Path(tempfile.gettempdir()))
    folder, lock = _locked()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked() -> tuple[Path, int]:
    """A new folder and the lock on it, held for as long as this process lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # another gateway removed it before it was locked


def _sweep(above: Path) -> None:
    for folder in above.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or gone by now
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


@contextlib.asynccontextmanager
async def serve_on_unix_socket(
    app: ASGIApp, settings: ServerSettings, path: Path
) -> AsyncGenerator[None, None]:
    """While inside, the app answers there; what an earlier process left at that path is removed."""
    with _bound(path) as listener:
        plain = structs.replace(settings, tls_cert=None, tls_key=None)
        server = AppServer(uvicorn_config(app, plain))
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
            f"The socket {path} cannot be created: {error.strerror or error}.",
            hint="Set TMPDIR to a short path that is writable.",
        ) from None
    return listener
