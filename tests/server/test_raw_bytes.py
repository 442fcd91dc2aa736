"""What arrives on the socket without being HTTP, or being too much of it."""

import asyncio
import random

import pytest

from ganglion.server.life import connection

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\n"
NASTY = [
    b"\x00" * 100,
    b"\r\n" * 50,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 200,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET  /  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"G" * 5000,
    b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /%00%ff%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\n\r\nZZ\r\nhello\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nhello",
    HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhel",
    HEAD + b"content-length: -1\r\n\r\n",
    HEAD + b"content-length: 99999999999999999999\r\n\r\n",
    HEAD + b"bad header\r\n\r\n",
    HEAD + b"x: a\nb: c\r\n\r\n",
    HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
    (b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n") * 40,
]


async def exchange(port: int, raw: bytes) -> bytes:
    """Send bytes, half-close, and read what comes within a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        await writer.drain()
        async with asyncio.timeout(0.15):
            return await reader.read(65536)
    except (TimeoutError, ConnectionError):
        return b""
    finally:
        writer.transport.abort()


async def test_garbage_does_not_disturb_the_server(serving) -> None:
    chance = random.Random(7)
    cases = list(NASTY)
    for _ in range(376):
        raw = bytearray(chance.choice(NASTY))
        for _ in range(chance.randint(1, 8)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        cases.append(bytes(raw[: chance.randint(1, len(raw))]))
    async with serving() as served:
        for start in range(0, len(cases), 50):
            replies = await asyncio.gather(*(exchange(served.port, raw) for raw in cases[start : start + 50]))
            for raw, reply in zip(cases[start:], replies, strict=False):
                assert b" 500 " not in reply[:20], raw
        assert (await served.post()).status_code == 200
        await served.until_idle()


async def test_what_is_not_http_is_told_in_the_envelope(serving) -> None:
    async with serving() as served:
        reply = await exchange(served.port, b"hello\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 400 Bad Request")
        assert b'"code":"invalid_value"' in reply


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 70_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: y\r\n" * 20_000,
        b"GET /" + b"a" * 200_000,
    ],
)
async def test_a_huge_head_is_refused(serving, raw) -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(raw)
        async with asyncio.timeout(2):
            assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
        writer.transport.abort()


async def test_a_head_of_ordinary_size_passes_however_it_is_cut(serving) -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        for _ in range(3):
            raw = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 30_000 + b"\r\n\r\n"
            for start in range(0, len(raw), 7000):
                writer.write(raw[start : start + 7000])
                await writer.drain()
                await asyncio.sleep(0)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b'{"status":"ok"}')
        writer.transport.abort()


async def test_a_head_that_never_ends_is_given_up(serving, monkeypatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.1)
    async with serving() as served:
        for raw in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(raw)
            async with asyncio.timeout(1):
                with pytest.raises(ConnectionError):
                    assert await reader.read() == b""
                    raise ConnectionResetError
            writer.transport.abort()
