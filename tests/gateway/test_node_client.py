"""Awaited calls to a node, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from byte_server import Handle, Line, answer, byte_server

from ganglion.core.errors import DeadlineExceeded, UpstreamUnavailable
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.gateway.upstream.pool import ConnectionPools, NodeUnreached


@asynccontextmanager
async def node_client(handle: Handle, *, prefix: str = "", key: str | None = None):  # type: ignore[no-untyped-def]
    pools = ConnectionPools()
    async with byte_server(handle) as server:
        try:
            yield NodeClient(pools), NodeSpec("node", server.url + prefix, api_key=key), server
        finally:
            pools.close()


async def answering(line: Line) -> None:
    while await line.asked():
        await line.say(answer(b"ok", headers=b"X-Name: value\r\n"))


def saying(*pieces: bytes, stays: bool = False) -> Handle:
    async def handle(line: Line) -> None:
        await line.asked()
        await line.say(*pieces)
        if stays:
            await line.until_cut()

    return handle


async def test_a_call_carries_the_nodes_own_key_path_and_body_and_reuses_its_connection() -> None:
    async with node_client(answering, prefix="/api/v1", key="secret") as (out, spec, server):
        told = await out.call(spec, "POST", "/v1/x?a=1", headers=[(b"x-a", b"b")], body=b"{}", timeout_s=5)
        assert (told.status, told.body) == (200, b"ok")
        assert (b"x-name", b"value") in told.headers
        assert (await out.call(spec, "GET", "/v1/models", timeout_s=5)).body == b"ok"
        [line] = server.lines
        host = server.url.removeprefix("http://").encode()
        assert line.heads == [
            b"POST /api/v1/x?a=1 HTTP/1.1\r\nhost: %b\r\nauthorization: Bearer secret\r\nx-a: b\r\n"
            b"content-length: 2\r\n\r\n" % host,
            b"GET /api/v1/models HTTP/1.1\r\nhost: %b\r\nauthorization: Bearer secret\r\n\r\n" % host,
        ]


async def test_an_answer_that_is_an_error_is_an_answer() -> None:
    async with node_client(saying(answer(b"no", status="503 Service Unavailable"))) as (out, spec, _):
        told = await out.call(spec, "POST", "/", timeout_s=5)
        assert (told.status, told.body) == (503, b"no")


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", b"nonsense\r\n\r\n"]
)
async def test_an_answer_that_breaks_off_is_unavailable(said: bytes) -> None:
    async with node_client(saying(said)) as (out, spec, _):
        with pytest.raises(UpstreamUnavailable, match="broke off its answer"):
            await out.call(spec, "GET", "/", timeout_s=5)


async def test_what_came_before_a_break_is_read_before_the_break_is_told() -> None:
    breaking = saying(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
    async with node_client(breaking) as (out, spec, server), out.stream(spec, "GET", "/") as incoming:
        await server.lines[0].gone()
        await asyncio.sleep(0.02)
        assert await incoming.read() == b"half"
        with pytest.raises(UpstreamUnavailable):
            await incoming.read()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"])
async def test_an_answer_that_does_not_come_in_time_is_a_deadline_and_its_connection_is_cut(
    said: bytes,
) -> None:
    async with node_client(saying(said, stays=True)) as (out, spec, server):
        with pytest.raises(DeadlineExceeded):
            await out.call(spec, "GET", "/", timeout_s=0.05)
        await server.lines[0].gone()


async def test_an_answer_larger_than_the_bound_is_not_read_to_its_end() -> None:
    async def endless(line: Line) -> None:
        await line.asked()
        await line.say(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await line.say(bytes(65536))

    async with node_client(endless) as (out, spec, server):
        with pytest.raises(UpstreamUnavailable, match="more than 100000 bytes"):
            await out.call(spec, "GET", "/", timeout_s=5, max_bytes=100_000)
        await server.lines[0].gone()


async def test_leaving_a_stream_early_cuts_its_connection() -> None:
    left = asyncio.Event()

    async def handle(line: Line) -> None:
        await line.asked()
        await line.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n")
        await line.until_cut()
        left.set()

    async with node_client(handle) as (out, spec, _):
        async with out.stream(spec, "GET", "/") as incoming:
            assert await incoming.read() == b"hi"
            assert not incoming.is_over
        await asyncio.wait_for(left.wait(), 2)


async def test_a_stream_that_was_read_to_its_end_gives_its_connection_back() -> None:
    async with node_client(answering) as (out, spec, server):
        for _ in range(3):
            async with out.stream(spec, "GET", "/") as incoming:
                assert [piece async for piece in _pieces(incoming)] == [b"ok"]
        assert len(server.lines) == 1


async def _pieces(incoming) -> AsyncIterator[bytes]:  # type: ignore[no-untyped-def]
    while piece := await incoming.read():
        yield piece


async def test_a_reader_who_does_not_keep_up_makes_the_node_wait() -> None:
    size_bytes = 64 * 2**20
    sent_bytes = 0

    async def handle(line: Line) -> None:
        nonlocal sent_bytes
        await line.asked()
        await line.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size_bytes)
        for _ in range(size_bytes // 2**18):
            await line.say(bytes(2**18))
            sent_bytes += 2**18

    async with node_client(handle) as (out, spec, _), out.stream(spec, "GET", "/") as incoming:
        stalled_at = -1
        while stalled_at != sent_bytes:
            stalled_at = sent_bytes
            await asyncio.sleep(0.1)
        assert 0 < sent_bytes < size_bytes // 2
        got_bytes = len(await incoming.read())
        assert got_bytes < 4 * 2**20  # the high mark, and one read beyond it
        while piece := await incoming.read():
            got_bytes += len(piece)
        assert got_bytes == size_bytes


async def test_nobody_listening_is_unavailable_and_a_key_is_in_no_message() -> None:
    async with node_client(answering, key="very-secret") as (out, spec, _):
        pass
    with pytest.raises(UpstreamUnavailable) as refused:
        await out.call(spec, "GET", "/", timeout_s=5)
    assert "very-secret" not in str(refused.value)


async def test_a_node_that_died_of_what_it_was_asked_was_reached() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"ok"))
        await reader.readuntil(b"\r\n\r\n")
        server.close()
        writer.close()

    pools = ConnectionPools()
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    out, spec = NodeClient(pools), NodeSpec("node", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        await out.call(spec, "POST", "/", timeout_s=5)
        with pytest.raises(UpstreamUnavailable, match="broke off its answer") as caught:
            await out.call(spec, "POST", "/", timeout_s=5)
        assert not isinstance(caught.value, NodeUnreached)
    finally:
        pools.close()
        server.close()
        await server.wait_closed()
