"""Free connections: kept, taken again, given up."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from byte_server import Line, answer, byte_server
from test_upstream import ask

from ganglion.core.errors import InvalidValue, UpstreamUnavailable
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream import pool as pools
from ganglion.gateway.upstream.address import parse_node_url
from ganglion.gateway.upstream.pool import IDLE_S, ConnectionPool, ConnectionPools


async def answering(line: Line) -> None:
    while await line.asked():
        await line.say(answer(b"ok"))


async def test_the_connection_that_was_used_last_is_taken_first_and_none_is_had_twice() -> None:
    async with byte_server(answering) as server:
        pool = ConnectionPool(parse_node_url(server.url))
        first, second = await pool.connect(), await pool.connect()
        await ask(first)
        await ask(second)
        assert [pool.take(), pool.take(), pool.take()] == [second, first, None]
        pool.close()


async def test_a_connection_that_was_free_for_too_long_is_closed_instead_of_used() -> None:
    now_s = 0.0
    async with byte_server(answering) as server:
        pool = ConnectionPool(parse_node_url(server.url), clock=lambda: now_s)
        old, young = await pool.connect(), await pool.connect()
        await ask(old)
        now_s = IDLE_S
        await ask(young)
        now_s = IDLE_S + 0.1
        assert pool.take() is young
        await ask(young)
        now_s = 2 * IDLE_S + 0.2
        assert pool.take() is None
        for line in server.lines:
            await line.gone()
        assert not old.is_usable and not young.is_usable


async def test_a_connection_that_the_node_closed_is_never_taken() -> None:
    async def once(line: Line) -> None:
        await line.asked()
        await line.say(answer(b"ok"), gap_s=0.02)

    async with byte_server(once) as server:
        pool = ConnectionPool(parse_node_url(server.url))
        connection = await pool.connect()
        assert (await ask(connection)).data == b"ok"
        await server.lines[0].gone()
        await asyncio.sleep(0.05)
        assert pool.take() is None
        assert not pool._idle and not pool._all


async def test_no_more_connections_are_kept_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_IDLE", 2)
    async with byte_server(answering) as server:
        pool = ConnectionPool(parse_node_url(server.url))
        connections = [await pool.connect() for _ in range(4)]
        for connection in connections:
            await ask(connection)
        assert [connection.is_usable for connection in connections] == [True, True, False, False]
        pool.close()


async def test_closing_a_pool_cuts_what_is_under_way_too() -> None:
    async def silent(line: Line) -> None:
        await line.asked()
        await line.until_cut()

    async with byte_server(silent) as server:
        pool = ConnectionPool(parse_node_url(server.url))
        connection = await pool.connect()
        asking = asyncio.create_task(ask(connection))
        await asyncio.sleep(0.02)
        pool.close()
        await server.lines[0].gone()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_unix_socket_is_a_place_like_any_other(tmp_path: Path) -> None:
    async with byte_server(answering, unix=tmp_path / "desk.sock") as server:
        pool = ConnectionPools().of(NodeSpec("desk", server.url))
        assert (await ask(await pool.connect())).data == b"ok"
        pool.close()


async def test_nobody_there_is_told_with_the_address_and_why(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        authority = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UpstreamUnavailable, match=authority):
            await ConnectionPool(parse_node_url(f"http://{authority}")).connect()
    for url in (f"unix://{tmp_path}/none", f"unix://{tmp_path}/{'a' * 200}", f"http://{'a' * 70}.invalid"):
        with pytest.raises(UpstreamUnavailable):
            await ConnectionPool(parse_node_url(url)).connect()


async def test_a_connection_that_does_not_come_about_in_time_is_unavailable() -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # fills its backlog, so that the next one waits
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(UpstreamUnavailable, match="in time"):
            await ConnectionPool(parse_node_url(f"http://127.0.0.1:{full.getsockname()[1]}")).connect(
                timeout_s=0.1
            )


async def test_nodes_share_a_pool_only_where_they_share_a_url() -> None:
    every = ConnectionPools()
    one, same, other = (NodeSpec(*spec) for spec in (("a", "http://x"), ("b", "http://x"), ("c", "http://y")))
    assert every.of(one) is every.of(same)
    assert every.of(one) is not every.of(other)
    with pytest.raises(InvalidValue):
        every.of(NodeSpec("d", "nowhere"))
