"""A proxy between a gateway and a node that spoils answers to POST as a test has it, or swallows everything.

Whatever is not a POST passes, so that the gateway goes on taking the node for healthy.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Passage:
    """One spoilt request: what the client side wants written, and the node's own answer where it is asked."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    request: bytes
    port: int

    async def answer(self) -> bytes:
        """What the node says, whole."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            closing = b"connection: close\r\n"
            head, _, body = self.request.partition(b"\r\n\r\n")
            writer.write(head + b"\r\n" + closing + b"\r\n" + body)
            return await reader.read(-1)
        finally:
            writer.close()

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_cut(self) -> None:
        """Wait for the gateway to give up."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        line = self.writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Fault = Callable[[Passage], Awaitable[None]]


@dataclass
class FaultProxy:
    """Where it listens, and what it does."""

    node_port: int
    port: int = 0
    fault: Fault | None = None
    is_cut_off: bool = False
    """Whether nothing gets through, and nobody is told."""
    is_mute: bool = False
    """Whether requests get through, and answers do not."""
    spoilt: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
                await self._carry(reader, writer)
        finally:
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node_reader, node_writer = await asyncio.open_connection("127.0.0.1", self.node_port)
        back = asyncio.create_task(self._back(node_reader, writer))
        try:
            while True:
                request = await _request(reader)
                if self.fault is not None and request.startswith(b"POST"):
                    self.spoilt += 1
                    back.cancel()
                    await self.fault(Passage(reader, writer, request, self.node_port))
                    return
                if not self.is_cut_off:
                    node_writer.write(request)
        finally:
            back.cancel()
            node_writer.close()
            await asyncio.gather(back, return_exceptions=True)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self.is_cut_off and not self.is_mute:
                writer.write(data)
                await writer.drain()
        writer.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return head + await reader.readexactly(int(line.split(b":")[1]))
    return head


@asynccontextmanager
async def fault_proxy(node_port: int) -> AsyncIterator[FaultProxy]:
    """Stand before a node."""
    proxy = FaultProxy(node_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in tuple(proxy.tasks):
            task.cancel()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)
        await server.wait_closed()
