"""Embeddings of Ganglion and of its peer on the same model: inputs a second, and whether the vectors agree.

.venv/bin/python -m benchmarks.embeddings --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import http.client
import json
import os
import random
import tempfile
import time
from dataclasses import dataclass
from statistics import median
from typing import IO

from benchmarks.load import Endpoint
from benchmarks.servers import POLL_S, START_TIMEOUT_S, Launch, ServerDied, ours, peer, running

MODEL = "smollm2-135m-instruct"
TARGET = 1.0
ALIKE = 0.99
WORDS = ("river", "stone", "winter", "machine", "garden", "letter", "window", "copper", "market", "shadow")


@dataclass(frozen=True, slots=True)
class Load:
    """`calls` requests of `inputs` texts of `words` words each, `at_once` of them in flight."""

    calls: int
    inputs: int
    words: int
    at_once: int

    def texts(self, seed: int) -> list[list[str]]:
        chance = random.Random(seed)
        return [
            [" ".join(chance.choices(WORDS, k=self.words)) for _ in range(self.inputs)]
            for _ in range(self.calls)
        ]


@dataclass(frozen=True, slots=True)
class Measured:
    """`vectors` are those of the first call."""

    inputs_per_s: float
    tokens_per_s: float
    vectors: list[list[float]]


def main() -> None:
    options = _options()
    load = Load(options.calls, options.inputs, options.words, options.at_once)
    found: dict[str, list[Measured]] = {"ganglion": [], "peer": []}
    with tempfile.TemporaryFile() as log:
        for number in range(options.rounds):
            launches = [ours(MODEL, options.threads), _peer(options.threads)]
            for launch in launches if number % 2 == 0 else reversed(launches):
                found[launch.server].append(asyncio.run(_measure(launch, load, log)))
    rates = {server: median(each.inputs_per_s for each in runs) for server, runs in found.items()}
    ratio = rates["ganglion"] / rates["peer"]
    alike = min(
        _cosine(left, right)
        for left, right in zip(found["ganglion"][0].vectors, found["peer"][0].vectors, strict=True)
    )
    for server, runs in found.items():
        tokens = median(each.tokens_per_s for each in runs)
        print(f"{server:9} {rates[server]:9.1f} inputs/s {tokens:9.0f} tok/s")
    print(f"ratio     {ratio:9.2f}  target {TARGET:g}  {'ok' if ratio >= TARGET else 'MISS'}")
    print(f"alike     {alike:9.4f}  (cosine of the vectors furthest apart)")
    raise SystemExit(0 if alike >= ALIKE else 1)


def _peer(threads: int) -> Launch:
    # With a cache for each slot it cuts inputs of different lengths apart and pools only their last parts.
    launch = peer(MODEL, threads, is_unified=True)
    return dataclasses.replace(launch, command=(*launch.command, "--embedding"))


async def _measure(launch: Launch, load: Load, log: IO[bytes]) -> Measured:
    async with running(launch, log, _first_vector) as server:
        calls = load.texts(seed=1)
        turn = asyncio.Semaphore(load.at_once)

        async def call(texts: list[str]) -> tuple[list[list[float]], int]:
            async with turn:
                return await asyncio.to_thread(_embed, server.endpoint, texts)

        began_s = time.perf_counter()
        answers = await asyncio.gather(*map(call, calls))
        elapsed_s = time.perf_counter() - began_s
    tokens = sum(count for _, count in answers)
    return Measured(load.calls * load.inputs / elapsed_s, tokens / elapsed_s, answers[0][0])


async def _first_vector(endpoint: Endpoint, process: asyncio.subprocess.Process, launch: Launch) -> float:
    deadline_s = time.perf_counter() + START_TIMEOUT_S
    while time.perf_counter() < deadline_s:
        if process.returncode is not None:
            raise ServerDied(f"{launch.server} ended with status {process.returncode} before it answered")
        try:
            await asyncio.to_thread(_embed, endpoint, ["Hi"])
            return time.perf_counter()
        except (OSError, http.client.HTTPException):
            await asyncio.sleep(POLL_S)
    raise ServerDied(f"{launch.server} did not answer within {START_TIMEOUT_S:g} s")


def _embed(endpoint: Endpoint, texts: list[str]) -> tuple[list[list[float]], int]:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=START_TIMEOUT_S)
    body = json.dumps({"model": endpoint.model, "input": texts})
    connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    if answer.status != 200:
        raise http.client.HTTPException(f"{answer.status}: {data[:300].decode()}")
    decoded = json.loads(data)
    return [item["embedding"] for item in decoded["data"]], decoded["usage"]["prompt_tokens"]


def _cosine(left: list[float], right: list[float]) -> float:
    dot = sum(one * other for one, other in zip(left, right, strict=True))
    norms = [sum(value * value for value in each) ** 0.5 for each in (left, right)]
    return dot / (norms[0] * norms[1])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=32)
    parser.add_argument("--inputs", type=int, default=8, help="texts in one call")
    parser.add_argument("--words", type=int, default=60, help="words in one text")
    parser.add_argument("--at-once", type=int, default=8, help="calls in flight")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
