"""The cost of a wire: tokens a second over Responses and Messages against chat, 16 streams on one server.

    python -m benchmarks.wires
    python -m benchmarks.wires --rounds 1 --requests 16 --output-tokens 16

Law: all rates of a ratio come from one server in one run, the wires taking turns. Responses are stored, as
they are by default, so that their rate includes the cost of the store.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from random import Random
from typing import IO

import msgspec
import uvloop
from rich.console import Console

from benchmarks import report
from benchmarks.load import Body, Endpoint
from benchmarks.prompts import words
from benchmarks.servers import PARALLEL, ServerDied, ours, running

MODEL_NAME = "smollm2-135m-instruct"
PROMPT_TOKENS = 64
TIMEOUT_S = 600.0
AT_LEAST = 0.97

console = Console(stderr=True, highlight=False)


def _chat(model: str, text: str, tokens: int) -> tuple[str, dict[str, object]]:
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
    return "/v1/chat/completions", body | {"stream_options": {"include_usage": True}}


def _responses(model: str, text: str, tokens: int) -> tuple[str, dict[str, object]]:
    body = {"model": model, "input": text, "max_output_tokens": tokens, "ignore_eos": True}
    return "/v1/responses", body


def _messages(model: str, text: str, tokens: int) -> tuple[str, dict[str, object]]:
    messages = [{"role": "user", "content": text}]
    return "/v1/messages", {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}


Wire = Callable[[str, str, int], tuple[str, dict[str, object]]]
WIRES: dict[str, Wire] = {"chat": _chat, "responses": _responses, "messages": _messages}
_COUNT = re.compile(rb'"(?:completion|output)_tokens":(\d+)')


def main() -> None:
    options = _options()
    with tempfile.TemporaryFile() as log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            rates = runner.run(_measure(options, log))
        except ServerDied as error:
            console.print(f"error: {error}", markup=False, soft_wrap=True)
            sys.exit(1)
    title = f"wires beside chat · {PARALLEL} streams · {options.threads} threads · {options.rounds} rounds"
    rows = [
        report.row(wire, f"{wire} | chat", "tok/s", rates[wire], rates["chat"], report.at_least(AT_LEAST))
        for wire in ("responses", "messages")
    ]
    Console(width=120).print(report.table(rows, title))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wires", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rounds", type=int, default=3)
    add("--requests", type=int, default=32)
    add("--output-tokens", type=int, default=128)
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


async def _measure(options: argparse.Namespace, log: IO[bytes]) -> defaultdict[str, list[float]]:
    rates: defaultdict[str, list[float]] = defaultdict(list)
    async with running(ours(MODEL_NAME, options.threads), log) as server:
        await _burst(server.endpoint, WIRES["chat"], options, "warm-up")
        for number in range(options.rounds):
            names = list(WIRES)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                rate = await _burst(server.endpoint, WIRES[name], options, f"{number}/{name}")
                rates[name].append(rate)
                console.print(f"round {number + 1}/{options.rounds} · {name} · {rate:.1f} tok/s")
    return rates


async def _burst(endpoint: Endpoint, wire: Wire, options: argparse.Namespace, seed: str) -> float:
    """Tokens a second over all requests of a burst."""
    random = Random(seed)
    bodies = []
    for _ in range(options.requests):
        path, body = wire(endpoint.model, words(random, PROMPT_TOKENS), options.output_tokens)
        body |= {"stream": True, "temperature": 0}
        bodies.append(_request(endpoint, path, msgspec.json.encode(body)))
    waiting, counts = iter(bodies), list[int]()
    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as clients:
        for _ in range(PARALLEL):
            clients.create_task(_client(endpoint, waiting, counts))
    elapsed_s = time.perf_counter() - began_s
    expected = options.requests * options.output_tokens
    if sum(counts) != expected:
        raise ServerDied(f"{sum(counts)} tokens came where {expected} were requested")
    return expected / elapsed_s


def _request(endpoint: Endpoint, path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def _client(endpoint: Endpoint, waiting: Iterator[bytes], counts: list[int]) -> None:
    for request in waiting:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            writer.write(request)
            body, last = Body(), b""
            while not body.is_complete and (data := await reader.read(2**16)):
                last = (last + body.feed(data))[-8192:]
            writer.close()
        found = _COUNT.findall(last)
        counts.append(int(found[-1]) if found else 0)


if __name__ == "__main__":
    main()
