"""A client that leaves, stalls or lies takes nothing with it."""

import asyncio
import socket

import pytest

from support.raw_http import request_bytes
from support.waiting import until

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("choices", [1, 3])
async def test_a_client_that_leaves_cancels_its_generation(serving, is_streamed, choices) -> None:
    async with serving() as served:
        tasks_before = len(asyncio.all_tasks())
        for moment_s in (0.0, 0.02, 0.05):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            body = served.chat("!echo unbounded=1 delay=0.01\na b", stream=is_streamed, n=choices)
            writer.write(request_bytes(CHAT, body))
            await writer.drain()
            await until(lambda: served.slots_used() == choices)
            await asyncio.sleep(moment_s)
            writer.transport.abort()
            await served.until_idle(0.5)
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        assert (await served.post()).status_code == 200


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_pipelined_requests_die_with_their_client_too(serving, is_streamed) -> None:
    async with serving() as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        body = served.chat("!echo unbounded=1 delay=0.01\na b", stream=is_streamed)
        writer.write(request_bytes(CHAT, body) * 3)
        await until(lambda: served.slots_used() == 1)
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await served.until_idle(0.5)


async def test_many_clients_leave_at_random_and_nothing_leaks(serving) -> None:
    async with serving() as served:
        tasks_before = len(asyncio.all_tasks())

        async def come_and_go(number: int) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            content = f"!echo delay=0.005 unbounded=1 first_token_delay={number % 5 * 0.01}\nx y z"
            raw = request_bytes(CHAT, served.chat(content, stream=number % 2 == 0, n=1 + number % 2))
            writer.write(raw[: len(raw) // 2] if number % 10 == 0 else raw)
            await asyncio.sleep(number % 7 * 0.01)
            writer.transport.abort()

        await asyncio.gather(*(come_and_go(number) for number in range(100)))
        await served.until_idle()
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        page = (await served.http.get("/metrics")).text
        assert 'ganglion_requests_in_flight{model="echo"} 0.0' in page
        assert 'ganglion_slots_used{model="echo"} 0.0' in page


async def test_a_reader_that_stalls_is_cut_and_its_neighbour_is_not(serving) -> None:
    async with serving(stalled_reader_s=0.2) as served:
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", served.port))
        body = served.chat("!echo unbounded=1\n" + "x" * 20_000, stream=True, max_tokens=10**6)
        stalled.sendall(request_bytes(CHAT, body))
        neighbour = asyncio.create_task(served.post("!echo delay=0.02\n" + "a " * 20, stream=True))
        await until(lambda: served.slots_used() == 2)
        assert (await neighbour).text.endswith("data: [DONE]\n\n")
        await served.until_idle(3)
        stalled.close()
