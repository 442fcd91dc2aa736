"""A server that says whatever bytes a test wants, for everything that real servers rarely do."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

Handle = Callable[["Line"], Awaitable[None]]


@dataclass
class Line:
    """One connection, from the server's side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    """Counted from 0 over the server's life."""
    heads: list[bytes] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def asked(self) -> str:
        """Wait for a whole request and return its first line; what it held is in `heads`."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                await self.reader.readexactly(int(line.split(b":")[1]))
        return head.split(b"\r\n")[0].decode()

    async def say(self, *pieces: bytes, gap_s: float = 0.0) -> None:
        """Each piece in a write of its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(gap_s)

    async def until_cut(self) -> None:
        """Wait for the other side to leave."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    async def gone(self) -> None:
        """For a test: wait until its handler is through."""
        await asyncio.wait_for(self.ended.wait(), 2)

    def cut(self) -> None:
        """Reset the connection."""
        line = self.writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass
class ByteServer:
    """Where it listens, and who came."""

    url: str
    lines: list[Line] = field(default_factory=list)


@asynccontextmanager
async def byte_server(
    handle: Handle, *, unix: Path | None = None, port: int = 0
) -> AsyncIterator[ByteServer]:
    """Listen on loopback, or on a Unix socket; a connection is closed when its handler returns."""
    running: set[asyncio.Task[None]] = set()
    served = ByteServer("")

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        line = Line(reader, writer, len(served.lines))
        served.lines.append(line)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await handle(line)
        finally:
            running.discard(task)
            line.ended.set()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    if unix is None:
        server = await asyncio.start_server(one, "127.0.0.1", port)
        served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    else:
        server = await asyncio.start_unix_server(one, unix)
        served.url = f"unix://{unix}"
    try:
        yield served
    finally:
        server.close()
        for task in tuple(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()


def answer(body: bytes, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    """A whole response with a length."""
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b\r\n%b" % (status.encode(), len(body), headers, body)
