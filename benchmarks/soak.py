"""The growth of a node's memory with the requests it has answered: the slope of its RSS over many thousands.

    python -m benchmarks.soak
    python -m benchmarks.soak --requests 100000

The echo engine answers, on every wire, streamed and whole, stored and not, valid and not; a connection
carries a hundred requests. The first fifth warms up and does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from itertools import count

import msgspec
import psutil
import uvloop
from rich.console import Console

from benchmarks.load import Endpoint
from benchmarks.servers import Launch, Running, ServerDied, ours, process_tree, running

REQUESTS = 25_000
STREAMS = 8
SAMPLES = 50
WARM_UP_SHARE = 0.2
AT_MOST_MIB = 1.0
"""The growth that 10,000 requests may cause."""
REQUESTS_PER_CONNECTION = 100
"""Requests that one connection carries."""
TIMEOUT_S = 60.0
MODEL = "echo"

console = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class Sample:
    """The node's processes after so many requests."""

    requests: int
    resident_bytes: int
    open_files: int


def request_of(number: int) -> tuple[str, dict[str, object]]:
    """The path and body of the n-th request; texts differ, in few words: the echo engine keeps these."""
    text = " ".join(str(number // divisor % 100) for divisor in (1, 100, 10_000)) + " more" * (number % 40)
    messages = [{"role": "user", "content": text}]
    stream = {"stream": True} if number % 2 else {}
    match number // 2 % 8:
        case 0 | 1 | 2:
            return "/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 32, **stream}
        case 3:
            return "/v1/responses", {"model": MODEL, "input": text, "max_output_tokens": 32, **stream}
        case 4:
            kept = {"store": False, "max_output_tokens": 32}
            return "/v1/responses", {"model": MODEL, "input": text, **kept, **stream}
        case 5:
            return "/v1/messages", {"model": MODEL, "messages": messages, "max_tokens": 32, **stream}
        case 6:
            return "/v1/completions", {"model": MODEL, "prompt": text, "max_tokens": 32, **stream}
        case _:
            return "/v1/chat/completions", {"model": f"unknown-{number % 7}", "messages": messages, **stream}


def slope_mib(samples: list[Sample]) -> float:
    """MiB of resident memory that 10,000 requests add, by least squares."""
    mean_x = sum(sample.requests for sample in samples) / len(samples)
    mean_y = sum(sample.resident_bytes for sample in samples) / len(samples)
    over = sum((each.requests - mean_x) * (each.resident_bytes - mean_y) for each in samples)
    under = sum((each.requests - mean_x) ** 2 for each in samples)
    return over / under * 10_000 / 2**20


async def soak(server: Running, requests: int) -> list[Sample]:
    """Send so many requests, and sample the node's processes now and then."""
    numbers = iter(range(requests))
    answered = count(1)
    samples: list[Sample] = []

    async def one_client() -> None:
        left = 0
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        for number in numbers:
            if streams is None or not left:
                await _close(streams)
                streams, left = (
                    await asyncio.open_connection(server.endpoint.host, server.endpoint.port),
                    REQUESTS_PER_CONNECTION,
                )
            left -= 1
            await _exchange(server.endpoint, *streams, *request_of(number))
            done = next(answered)
            if done % (requests // SAMPLES) == 0:
                samples.append(_sample(server.pid, done))
                console.print(
                    f"{done:>8} requests  {samples[-1].resident_bytes / 2**20:8.2f} MiB", highlight=False
                )
        await _close(streams)

    await asyncio.gather(*(one_client() for _ in range(STREAMS)))
    return samples


async def _close(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None) -> None:
    if streams is not None:
        streams[1].close()


async def _exchange(
    endpoint: Endpoint,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    path: str,
    body: dict[str, object],
) -> None:
    encoded = msgspec.json.encode(body)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {endpoint.host}:{endpoint.port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(encoded)}\r\n\r\n"
    )
    writer.write(head.encode() + encoded)
    async with asyncio.timeout(TIMEOUT_S):
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" not in answer:
            length = next(line for line in answer.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            return
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()


def _sample(pid: int, requests: int) -> Sample:
    resident = open_files = 0
    for process in process_tree(pid):
        with process.oneshot():
            resident += process.memory_info().rss
            open_files += process.num_fds()
    return Sample(requests, resident, open_files)


async def _measure(requests: int) -> list[Sample]:
    launch: Launch = ours(MODEL, None, kv_tokens=None, extra=f"--engine echo --served-name {MODEL} --no-grpc")
    with tempfile.TemporaryFile() as log:
        async with running(launch, log) as server:
            return await soak(server, requests)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            samples = runner.run(_measure(options.requests))
        except (ServerDied, psutil.Error) as error:
            console.print(f"error: {error}", markup=False, soft_wrap=True)
            sys.exit(1)
    counted = samples[int(len(samples) * WARM_UP_SHARE) :]
    slope = slope_mib(counted)
    files = [sample.open_files for sample in counted]
    print(f"{slope:.2f} MiB per 10,000 requests (at most {AT_MOST_MIB:g})")
    print(f"{min(files)} to {max(files)} open files")
    sys.exit(slope >= AT_MOST_MIB)


if __name__ == "__main__":
    main()
