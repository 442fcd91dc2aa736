"""Writes of one round: each connection's in order, whatever becomes of another's."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from ganglion.gateway.upstream.upstream_connection import WriteCoalescer


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.Transport, asyncio.StreamReader]]:
    """A real connection: its transport on one side, what arrives on the other."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        yield cast(asyncio.Transport, transport), reader
    finally:
        transport.abort()
        writer.transport.abort()
        await asyncio.sleep(0)


async def test_what_was_said_in_one_round_leaves_together_and_in_order() -> None:
    writes = WriteCoalescer()
    async with connected() as (one, heard_one), connected() as (two, heard_two):
        for number in range(5):
            writes.send(one, b"a%d" % number)
            writes.send(two, b"b%d" % number)
        assert await heard_one.readexactly(10) == b"a0a1a2a3a4"
        assert await heard_two.readexactly(10) == b"b0b1b2b3b4"
        writes.send(one, b"later")
        assert await heard_one.readexactly(5) == b"later"


async def test_flushed_first_nothing_is_lost_by_closing() -> None:
    writes = WriteCoalescer()
    async with connected() as (transport, heard):
        writes.send(transport, b"the end")
        writes.flush()
        transport.close()
        assert await heard.read() == b"the end"


async def test_a_connection_that_is_gone_or_fails_harms_no_other(caplog) -> None:
    writes = WriteCoalescer()
    async with connected() as (gone, _), connected() as (broken, _), connected() as (good, heard):
        writes.send(gone, b"never")
        gone.abort()
        broken.write_eof()
        writes.send(broken, b"too late")
        writes.send(good, b"here")
        assert await heard.readexactly(4) == b"here"
        assert broken.is_closing()
    assert len(caplog.records) == 1
