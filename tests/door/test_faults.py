"""What a client sees when the worker dies, clients leave, or the input is hostile; on the real model."""

import asyncio
import json
import random
import re
import signal
import time

import pytest
from conftest import MODEL

pytestmark = pytest.mark.model


def body(text: str = "Tell me a long story.", **fields: object) -> bytes:
    ask = {"model": MODEL, "messages": [{"role": "user", "content": text}], "ignore_eos": True, **fields}
    return json.dumps(ask).encode()


def post(data: bytes) -> bytes:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def stream_to_end(port: int, data: bytes, started: asyncio.Event) -> tuple[bytes, float]:
    """All bytes of a streamed answer and when the last came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(data))
    received, last_s = b"", time.monotonic()
    while more := await reader.read(65536):
        received += more
        last_s = time.monotonic()
        if b'"content":"' in re.sub(rb'"content":""', b"", received):
            started.set()
        if received.endswith(b"0\r\n\r\n"):
            break
    writer.close()
    return received, last_s


def wait_until(check, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


async def test_a_killed_worker_ends_every_stream_with_an_error_frame_and_the_next_request_works(node):
    worker = node.worker()
    starts = [asyncio.Event() for _ in range(4)]
    streams = [
        asyncio.create_task(stream_to_end(node.port, body(stream=True, max_tokens=1500), start))
        for start in starts
    ]
    await asyncio.gather(*(start.wait() for start in starts))
    worker.send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    for received, last_s in await asyncio.gather(*streams):
        frames = re.findall(rb"data: (.*?)\n\n", received)
        assert json.loads(frames[-1])["error"]["code"] == "engine_failed"
        assert b"[DONE]" not in received
        assert last_s - killed_s < 2.0
    received, _ = await stream_to_end(node.port, body(stream=True, max_tokens=3), asyncio.Event())
    assert received.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" in received
    assert node.worker().pid != worker.pid
    assert node.gauge("ganglion_worker_restarts_total") >= 1


async def leave(port: int, chance: random.Random) -> None:
    """Connect, get somewhere, and leave without a word."""
    is_streamed = chance.random() < 0.6
    text = "word " * chance.choice([3, 40, 400])
    data = post(body(text, stream=is_streamed, max_tokens=200, n=chance.choice([1, 1, 2])))
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    phase = chance.randrange(4)
    if phase == 0:
        data = data[: chance.randrange(len(data))]  # in the middle of the request
    writer.write(data)
    await writer.drain()
    if phase > 1:  # queue, prefill, decode
        await asyncio.sleep(chance.random() * 0.4)
    writer.transport.abort()


@pytest.mark.timeout(100)
async def test_a_thousand_disconnects_in_all_phases_leave_nothing_behind(node):
    chance = random.Random(20)
    await stream_to_end(node.port, body(stream=True, max_tokens=3), asyncio.Event())
    before = {name: node.gauge(name) for name in ("ganglion_asyncio_tasks", "ganglion_open_fds")}
    for _ in range(20):
        await asyncio.gather(*(leave(node.port, chance) for _ in range(50)))
    await asyncio.to_thread(
        wait_until,
        lambda: node.health()["in_flight"] == 0
        and node.gauge("ganglion_slots_used") == 0
        and all(node.gauge(name) <= value + 1 for name, value in before.items()),
        20.0,
    )
    received, _ = await stream_to_end(node.port, body(stream=True, max_tokens=3), asyncio.Event())
    assert b"[DONE]" in received
