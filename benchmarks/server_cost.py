"""The processor time that a server process spends on each token that it streams.

    python -m benchmarks.server_cost [--streams 1,16,64,256] [--rounds 3] [--engine worker|echo]

A node is started over a worker without a model, which gives every stream one token a step
(`benchmarks.paced_worker`), or over the echo engine, which makes its words inside the server. Raw clients
read chat streams, and the server's own processor time is taken in the middle of them, where nothing begins
or ends; its children do not count. The smallest of the rounds is told: whatever else the machine does only
adds to it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

import uvloop
from tests.support.ports import free_port

from benchmarks import paced_worker
from ganglion.core.model import ModelFacts
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.engines.llama import tokens
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency
from ganglion.server.life.serve import serve
from ganglion.server.settings import ServerSettings

HOST = "127.0.0.1"
MODEL = "m"
STEPS = {1: 200, 16: 150, 64: 100, 256: 60}
"""Steps a second for so many streams; about what models of 8 billion parameters do."""
WINDOW_S = 2.0
READY_S = 120.0
ROOM_BYTES = 1 << 40
MOST = 256
ROOT = Path(__file__).parents[1]
FACTS = ModelFacts(
    path="none",
    size_bytes=0,
    modified_s=0,
    architecture="none",
    name="none",
    context_length=1 << 17,
    block_count=1,
    kv_values_per_token=1,
    vocabulary_size=paced_worker.VOCABULARY,
)


class Stream:
    """One client: asks for a stream and counts its chunks until it is closed."""

    def __init__(self) -> None:
        self.chunks = 0
        self.begun = asyncio.Event()
        """Set once chunks come: the first holds the role, the next text."""

    async def read(self, port: int, content: str) -> None:
        """Read to the end."""
        reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 20)
        try:
            writer.write(_request(port, content))
            while part := await reader.read(1 << 16):
                self.chunks += part.count(b"data: {")
                if self.chunks > 2:
                    self.begun.set()
        finally:
            writer.close()


def _request(port: int, content: str) -> bytes:
    fields = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 100_000}
    body = json.dumps({**fields, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def measure(port: int, pid: int, streams: int, content: str) -> tuple[float, float]:
    """Microseconds a token, and tokens a second, in the middle of so many streams."""
    readers = [Stream() for _ in range(streams)]
    tasks = [asyncio.create_task(each.read(port, content)) for each in readers]
    try:
        async with asyncio.timeout(READY_S):
            for each in readers:
                await each.begun.wait()
        made, used_s, began_s = _chunks(readers), _cpu_s(pid), time.monotonic()
        await asyncio.sleep(WINDOW_S)
        made, used_s = _chunks(readers) - made, _cpu_s(pid) - used_s
        return used_s / made * 1e6, made / (time.monotonic() - began_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _chunks(readers: list[Stream]) -> int:
    return sum(each.chunks for each in readers)


def _cpu_s(pid: int) -> float:
    """What a process used so far, user and system. In nanoseconds: the clock of `stat` ticks every 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


def _serve(port: int, kind: str) -> None:
    """Be the node that is measured."""
    # Its real worker computes; everything above it is what `ganglion serve` runs.
    tokens.WORKER = "benchmarks.paced_worker"  # type: ignore[misc]

    def make() -> EchoEngine | LlamaEngine:
        if kind == "echo":
            return EchoEngine(EchoSettings(MODEL, context=1 << 30, parallel=MOST, allow_directives=True))
        settings = EngineSettings(MODEL, context=1 << 17, kv_tokens=1 << 25, parallel=MOST, threads=1)
        return LlamaEngine(FACTS, settings, free_memory=ROOM_BYTES)

    engine = Residency([Candidate(MODEL, build_without_options(make))], free_bytes=lambda: ROOM_BYTES)
    uvloop.run(serve(engine, ServerSettings(port=port, has_grpc=False)))


async def _measure_node(kind: str, streams: int, rounds: int) -> str:
    """Start a node, measure it, end it; returns the line to print."""
    port = free_port()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        paced_worker.STEPS: str(STEPS.get(streams, 60)),
    }
    command = [sys.executable, "-m", "benchmarks.server_cost", "--serve", str(port), "--engine", kind]
    node = await asyncio.create_subprocess_exec(*command, env=environment)
    try:
        await _until_ready(port)
        content = "!echo unbounded=1" if kind == "echo" else "Hello"
        found = [await measure(port, node.pid, streams, content) for _ in range(rounds)]
    finally:
        node.terminate()
        await node.wait()
    cost_us, tokens_s = min(found)
    every = ", ".join(f"{each:.1f}" for each, _ in found)
    return f"{streams:>4} streams  {cost_us:6.1f} us a token  {tokens_s:8.0f} tokens/s   (of {every})"


async def _until_ready(port: int) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            try:
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(f"GET /health/ready HTTP/1.0\r\nHost: {HOST}:{port}\r\n\r\n".encode())
                head = await reader.readline()
                writer.close()
                if b" 200 " in head:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.05)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server_cost")
    parser.add_argument("--streams", default="1,16,64,256", help="how many at once, in turn")
    parser.add_argument("--rounds", type=int, default=3, help="of each, of which the cheapest counts")
    parser.add_argument("--engine", choices=("worker", "echo"), default="worker")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        _serve(given.serve, given.engine)
        return
    for streams in map(int, given.streams.split(",")):
        print(asyncio.run(_measure_node(given.engine, streams, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
