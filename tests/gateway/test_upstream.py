"""One connection to a node, over real sockets, against a server that says any bytes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from byte_server import ByteServer, Handle, Line, answer, byte_server

from ganglion.gateway.upstream.address import parse_node_url
from ganglion.gateway.upstream.pool import ConnectionPool
from ganglion.gateway.upstream.upstream_connection import MAX_HEAD_BYTES, Headers, UpstreamConnection

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n"
    b"5\r\nhello\r\n7;ext=1\r\n, world\r\n0\r\nx-trailer: t\r\n\r\n"
)


@dataclass
class Heard:
    """Everything that a sink was told, in order."""

    status: int = 0
    headers: Headers = field(default_factory=list)
    data: bytes = b""
    calls: list[str] = field(default_factory=list)
    error: Exception | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self.calls.append("head")

    def body(self, data: bytes, *, is_end: bool) -> None:
        self.data += data
        self.begun.set()
        self.calls.append("end" if is_end else "body")
        if is_end:
            self.ended.set()

    def lost(self, error: Exception | None) -> None:
        self.error = error
        self.calls.append("lost")
        self.ended.set()


@contextlib.asynccontextmanager
async def connected(handle: Handle) -> AsyncIterator[tuple[UpstreamConnection, ConnectionPool, ByteServer]]:
    async with byte_server(handle) as server:
        pool = ConnectionPool(parse_node_url(server.url))
        try:
            yield await pool.connect(), pool, server
        finally:
            pool.close()


async def ask(connection: UpstreamConnection, data: bytes = GET) -> Heard:
    heard = Heard()
    connection.request(data, heard)
    async with asyncio.timeout(5):
        await heard.ended.wait()
    return heard


def saying(*pieces: bytes, gap_s: float = 0.0, stays: bool = True) -> Handle:
    async def handle(line: Line) -> None:
        await line.asked()
        await line.say(*pieces, gap_s=gap_s)
        if stays:
            await line.until_cut()

    return handle


@pytest.mark.parametrize(
    ("said", "data"),
    [
        (answer(b"hello"), b"hello"),
        (answer(b""), b""),
        (CHUNKED, b"hello, world"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"hello"), b"hello"),
        (
            b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + CHUNKED,
            b"hello, world",
        ),
    ],
)
async def test_a_framed_response_is_heard_whole_and_its_connection_is_free_again(
    said: bytes, data: bytes
) -> None:
    async with connected(saying(said)) as (connection, pool, _):
        heard = await ask(connection)
        assert (heard.status // 100, heard.data) == (2, data)
        assert heard.calls.count("head") == heard.calls.count("end") == 1
        assert (b"link", b"x") not in heard.headers
        assert (b"x-trailer", b"t") not in heard.headers
        assert all(name == name.lower() for name, _ in heard.headers)
        assert pool.take() is connection


@pytest.mark.parametrize(
    "said", [answer(b"hello", headers=b"x-a: b\r\n"), CHUNKED], ids=["length", "chunked"]
)
async def test_a_response_means_the_same_wherever_it_is_split(said: bytes) -> None:
    async def handle(line: Line) -> None:
        for at in range(len(said)):
            await line.asked()
            await line.say(said[:at], said[at:], gap_s=0.0003)
        await line.asked()
        for byte in said:
            await line.say(bytes([byte]))
        await line.until_cut()

    async with connected(handle) as (connection, _, server):
        first = await ask(connection)
        for _ in range(len(said)):
            heard = await ask(connection)
            assert (heard.status, heard.headers, heard.data) == (200, first.headers, first.data)
            assert heard.calls[0] == "head" and heard.calls[-1] == "end"
        assert len(server.lines) == 1
        assert connection.requests == len(said) + 1


async def test_what_one_read_brings_is_told_in_one_call() -> None:
    async with connected(saying(CHUNKED)) as (connection, _, _):
        assert (await ask(connection)).calls == ["head", "end"]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ],
)
async def test_a_body_without_a_length_ends_with_its_connection(head: bytes) -> None:
    async with connected(saying(head, b"all ", b"of it", stays=False)) as (connection, pool, _):
        heard = await ask(connection)
        assert (heard.data, heard.calls[-1]) == (b"all of it", "end")
        assert pool.take() is None


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
async def test_a_response_that_breaks_off_is_lost(said: bytes) -> None:
    async with connected(saying(said, stays=False)) as (connection, pool, _):
        heard = await ask(connection)
        assert heard.calls[-1] == "lost"
        assert "end" not in heard.calls
        assert not connection.is_usable
        assert pool.take() is None


async def test_a_body_without_a_length_that_is_reset_is_lost() -> None:
    async def handle(line: Line) -> None:
        await line.asked()
        await line.say(b"HTTP/1.1 200 OK\r\n\r\nsome", gap_s=0.02)
        line.cut()

    async with connected(handle) as (connection, _, _):
        assert (await ask(connection)).calls[-1] == "lost"


@pytest.mark.parametrize(
    "said",
    [
        b"garbage\r\n\r\n",
        b"\x00" * 50,
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * (MAX_HEAD_BYTES + 400_000),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
    ],
)
async def test_what_is_no_response_is_lost_and_ends_the_connection(said: bytes) -> None:
    async with connected(saying(said)) as (connection, pool, server):
        heard = await ask(connection)
        assert heard.calls[-1] == "lost"
        assert heard.error is not None
        await server.lines[0].gone()
        assert pool.take() is None


@pytest.mark.parametrize(
    "said",
    [
        answer(b"mine") + answer(b"poison"),
        answer(b"mine") + answer(b"poison")[:20],
        answer(b"mine") + b"garbage",
        answer(b"mine", headers=b"connection: close\r\n") + answer(b"poison"),
    ],
)
async def test_a_second_response_that_nobody_asked_for_reaches_nobody(said: bytes) -> None:
    async with connected(saying(said)) as (connection, pool, _):
        heard = await ask(connection)
        assert (heard.data, heard.calls) == (b"mine", ["head", "end"])
        assert pool.take() is None


@pytest.mark.parametrize("poison", [answer(b"poison"), b"HT"])
async def test_bytes_on_a_free_connection_end_it(poison: bytes) -> None:
    async def handle(line: Line) -> None:
        await line.asked()
        await line.say(answer(b"mine"), poison, gap_s=0.02)
        await line.until_cut()

    async with connected(handle) as (connection, pool, server):
        await ask(connection)
        assert connection.is_usable
        await asyncio.sleep(0.05)
        assert not connection.is_usable
        assert pool.take() is None
        await server.lines[0].gone()


async def test_a_node_that_says_close_is_believed() -> None:
    async with connected(saying(answer(b"bye", headers=b"connection: close\r\n"))) as (connection, pool, _):
        assert (await ask(connection)).data == b"bye"
        assert not connection.is_usable
        assert pool.take() is None


async def test_the_length_of_a_head_request_tells_of_no_body() -> None:
    async with connected(saying(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")) as (connection, _, _):
        heard = await ask(connection, b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (heard.status, heard.calls) == (200, ["head", "end"])


async def test_an_upgrade_becomes_a_tunnel_in_both_directions() -> None:
    async def handle(line: Line) -> None:
        await line.asked()
        await line.say(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nfirst "
        )
        await line.say(await line.reader.readexactly(4))

    async with connected(handle) as (connection, pool, _):
        heard = Heard()
        connection.request(GET, heard)
        await asyncio.wait_for(heard.begun.wait(), 2)
        connection.write(b"echo")
        await asyncio.wait_for(heard.ended.wait(), 2)
        assert (heard.status, heard.data, heard.calls[-1]) == (101, b"first echo", "lost")
        assert pool.take() is None


async def test_a_paused_connection_reads_no_more_until_it_is_resumed() -> None:
    size_bytes = 8 * 2**20

    async def handle(line: Line) -> None:
        await line.asked()
        await line.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size_bytes)
        for _ in range(size_bytes // 2**18):
            await line.say(bytes(2**18))
        await line.until_cut()

    async with connected(handle) as (connection, _, _):
        heard = Heard()
        connection.request(GET, heard)
        await asyncio.wait_for(heard.begun.wait(), 2)
        connection.pause()
        before = len(heard.data)
        await asyncio.sleep(0.05)
        assert len(heard.data) == before < size_bytes
        connection.resume()
        await asyncio.wait_for(heard.ended.wait(), 10)
        assert (len(heard.data), heard.calls[-1]) == (size_bytes, "end")


async def test_an_aborted_connection_tells_its_sink_nothing_and_the_node_sees_it_go() -> None:
    left = asyncio.Event()

    async def handle(line: Line) -> None:
        await line.asked()
        await line.say(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await line.until_cut()
        left.set()

    async with connected(handle) as (connection, pool, _):
        heard = Heard()
        connection.request(GET, heard)
        await asyncio.wait_for(heard.begun.wait(), 2)
        connection.abort()
        await asyncio.wait_for(left.wait(), 2)
        assert heard.calls == ["head", "body"]
        assert not connection.is_usable
        assert pool.take() is None
