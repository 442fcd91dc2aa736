"""Several gateways on one port: the kernel deals out connections, and each answers its own."""

import asyncio
import socket
from functools import partial
from pathlib import Path

import httpx
import pytest
from gateways import Running, echoes, gateway

from ganglion.server.bind import BindFailed, bind
from ganglion.server.life.storage import StoreTarget
from ganglion.server.settings import ServerSettings
from support.ports import free_port

CHAT = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}


async def answered_by(*gateways: Running) -> list[int]:
    """How many of forty connections to their port each gateway answered, told by its request log."""
    before = [len(running.lines) for running in gateways]
    for _ in range(40):
        async with httpx.AsyncClient(base_url=gateways[0].url) as http:  # a connection of its own
            assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200
    await asyncio.sleep(0.6)  # the log is written twice a second
    return [
        sum(line.count("/v1/chat/completions") for line in running.lines[seen:])
        for running, seen in zip(gateways, before, strict=True)
    ]


async def test_two_gateways_on_one_port_both_answer_and_either_goes_on_alone(tmp_path: Path) -> None:
    storage = StoreTarget(str(tmp_path / "shared.db"))
    async with echoes("a") as nodes:
        shared = partial(
            gateway, nodes, storage=storage, port=free_port(), has_reuse_port=True, has_grpc=True
        )
        async with shared() as one:
            async with shared() as other:
                counts = await answered_by(one, other)
                assert min(counts) > 0
                assert sum(counts) == 40
            assert await answered_by(one) == [40]


def test_without_the_option_a_port_is_not_shared() -> None:
    with bind(ServerSettings(port=0)) as taken, pytest.raises(BindFailed):
        taken.listen()
        bind(ServerSettings(port=taken.getsockname()[1], has_reuse_port=True))


def test_a_platform_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(BindFailed, match="no SO_REUSEPORT") as caught:
        bind(ServerSettings(port=0, has_reuse_port=True))
    assert "--reuse-port" in caught.value.hint
