"""Bodies that never end hold a bounded amount of memory, and keep nobody else from being read."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
from websockets.asyncio.client import connect

from ganglion.gateway.proxy import body_budget
from ganglion.server.middleware import body_limits
from support.waiting import until

HOSTILE, NEIGHBOUR = "sk-hostile-0123456789", "sk-neighbour-0123456789"
MEBIBYTE = 2**20
LARGE = 8 * MEBIBYTE


def head(key: str, *, size_bytes: int | None) -> bytes:
    length = "transfer-encoding: chunked" if size_bytes is None else f"content-length: {size_bytes}"
    return (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\n{length}\r\n\r\n"
    ).encode()


CHUNK = b"10000\r\n" + b" " * 65536 + b"\r\n"


@contextmanager
def stalled(port: int, count: int, *, is_chunked: bool) -> Iterator[list[socket.socket]]:
    """Clients that send nearly all of a body, as far as they are read, and then nothing more."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for client in clients:
        client.setblocking(False)
        client.send(head(HOSTILE, size_bytes=None if is_chunked else LARGE))
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


async def pour(clients: list[socket.socket], *, is_chunked: bool) -> None:
    sent = dict.fromkeys(clients, 0)
    data = CHUNK if is_chunked else b" " * 65536
    for _ in range(150):
        for client in clients:
            if sent[client] < LARGE - 2 * len(data):
                with suppress(BlockingIOError, ConnectionError):
                    # A chunk that is cut is no chunk any more, and no matter: it is never looked into.
                    sent[client] += client.send(data)
        await asyncio.sleep(0.002)


async def posted_large(served) -> int:
    """The status of a call whose body is large and says little."""
    data = json.dumps(served.chat()).encode() + b" " * MEBIBYTE
    headers = {"content-type": "application/json"}
    answer = await served.http.post("/v1/chat/completions", content=data, headers=headers)
    return int(answer.status_code)


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["announced", "chunked"])
async def test_two_hundred_bodies_that_never_end_take_little_and_are_in_nobodys_way(
    serving, is_chunked: bool
) -> None:
    async with serving(api_keys=(HOSTILE, NEIGHBOUR)) as served:
        served.http.headers["authorization"] = f"Bearer {NEIGHBOUR}"
        assert (await served.post()).status_code == 200
        before = resident_bytes()
        with stalled(served.port, 200, is_chunked=is_chunked) as clients:
            await pour(clients, is_chunked=is_chunked)
            assert resident_bytes() - before < 256 * MEBIBYTE
            assert (await served.post()).status_code == 200
            assert await posted_large(served) == 200, "a large body of another tenant finds room too"


async def test_who_waits_too_long_for_room_is_told_when_to_come_back(
    serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_budget, "WAIT_S", 0.2)
    async with serving(api_keys=(HOSTILE, NEIGHBOUR)) as served:
        served.http.headers["authorization"] = f"Bearer {HOSTILE}"
        with stalled(served.port, 10, is_chunked=False) as clients:
            await pour(clients, is_chunked=False)
            refused = await served.http.post("/v1/chat/completions", json=served.chat("word " * 200_000))
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert refused.json()["error"]["code"] == "overloaded"
            assert (await served.post()).status_code == 200, "a small one needs no room"
        served.http.headers["authorization"] = f"Bearer {NEIGHBOUR}"
        assert await posted_large(served) == 200


async def test_a_body_gives_its_room_back_however_it_ends(serving, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[body_limits.BodyMemoryLimit] = []
    init = body_limits.BodyMemoryLimit.__init__

    def noted(self: body_limits.BodyMemoryLimit, *given: object, **named: object) -> None:
        made.append(self)
        init(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(body_limits.BodyMemoryLimit, "__init__", noted)
    async with serving(body_s=0.5) as served:
        (room,) = made
        data = json.dumps(served.chat("word " * 60_000, max_tokens=1)).encode()
        assert (await served.http.post("/v1/chat/completions", content=data)).status_code == 415
        assert await posted_large(served) == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(head("", size_bytes=LARGE) + b" " * MEBIBYTE)
        await until(lambda: room.turns.used == LARGE)
        writer.close()
        await until(lambda: room.turns.used == 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(head("", size_bytes=LARGE) + b" " * MEBIBYTE)
        assert b" 504 " in await reader.readline(), "a body that does not end in time"
        assert room.turns.used == room.turns.waiting == 0
        writer.close()


def upgrade(key: str) -> bytes:
    return (
        "GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"authorization: Bearer {key}\r\n\r\n"
    ).encode()


async def test_messages_that_never_end_on_sockets_take_little_too(serving) -> None:
    async with serving(api_keys=(HOSTILE, NEIGHBOUR)) as served:
        before = resident_bytes()
        clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(100)]
        try:
            for client in clients:
                client.setblocking(False)
                client.send(upgrade(HOSTILE))
            await asyncio.sleep(0.5)
            for client in clients:
                assert client.recv(1000).startswith(b"HTTP/1.1 101")
                # A masked text frame of nearly 8 MiB, of which the end never comes.
                client.send(b"\x81\xff" + (LARGE - 1).to_bytes(8, "big") + bytes(4))
            await pour(clients, is_chunked=False)
            assert resident_bytes() - before < 256 * MEBIBYTE
            headers = {"authorization": f"Bearer {NEIGHBOUR}"}
            address = f"ws://127.0.0.1:{served.port}/v1/responses"
            async with connect(address, additional_headers=headers, max_size=None) as neighbour:
                await neighbour.send(json.dumps({"type": "nothing known", "padding": "x" * MEBIBYTE}))
                assert json.loads(await neighbour.recv())["type"] == "error", "it was read"
        finally:
            for client in clients:
                client.close()
