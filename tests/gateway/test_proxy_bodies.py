"""Bodies that never end take a bounded amount of a gateway's memory, and keep nobody else from being read."""

import asyncio
import socket
from contextlib import suppress

import pytest
from proxy_stage import CHAT, Keeper, always, answer, post, staged

from ganglion.gateway.access.admission import Identity
from ganglion.gateway.proxy import body_budget
from ganglion.gateway.proxy.body_budget import ROOM_BYTES
from support.waiting import until

LARGE = 8 * 2**20
KEYS = {b"hostile": Identity("hostile"), b"neighbour": Identity("neighbour")}
HOSTILE, NEIGHBOUR = "authorization: Bearer hostile", "authorization: Bearer neighbour"
GOOD = b'{"ok":true}'


def stalled(port: int, count: int) -> list[socket.socket]:
    """Clients that announce a large body."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    head = post("/v1/chat/completions", bytes(LARGE), HOSTILE).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    for client in clients:
        client.setblocking(False)
        client.send(head)
    return clients


async def pour(clients: list[socket.socket]) -> None:
    """Send as much as is read, and never the end."""
    sent = dict.fromkeys(clients, 0)
    data = bytes(65536)
    for _ in range(150):
        for client in clients:
            if sent[client] < LARGE - 2 * len(data):
                with suppress(BlockingIOError, ConnectionError):
                    sent[client] += client.send(data)
        await asyncio.sleep(0.001)


async def test_bodies_that_never_end_are_read_only_as_far_as_there_is_room() -> None:
    async with staged(always(answer(GOOD)), keeper=Keeper(dict(KEYS))) as stage:
        clients = stalled(stage.port, 100)
        try:
            await pour(clients)
            held = sum(connection._body_bytes for connection in stage.front.connections)
            assert held < ROOM_BYTES, "half of it is room, and the rest what came with the heads"
            assert stage.front.bodies.used <= ROOM_BYTES // 2
            large = CHAT + b" " * 2**20
            for body in (CHAT, large):
                assert (await stage.ask(post("/v1/chat/completions", body, NEIGHBOUR))).body == GOOD
            assert (await stage.ask(post("/v1/chat/completions", CHAT, HOSTILE))).body == GOOD
        finally:
            for client in clients:
                client.close()
        await until(lambda: not stage.front.bodies.used and not stage.front.bodies.waiting)


async def test_who_waits_too_long_for_room_is_told_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "WAIT_S", 0.2)
    async with staged(always(answer(GOOD)), keeper=Keeper(dict(KEYS))) as stage:
        clients = stalled(stage.port, 4)
        try:
            await until(lambda: stage.front.bodies.used == 4 * LARGE)
            refused = await stage.ask(post("/v1/chat/completions", CHAT + b" " * 2**20, HOSTILE))
            assert refused.status == 503
            assert refused.header(b"retry-after")
        finally:
            for client in clients:
                client.close()
        await until(lambda: not stage.front.bodies.used)
        assert (await stage.ask(post("/v1/chat/completions", CHAT + b" " * 2**20, HOSTILE))).body == GOOD
