"""The cost of scoring a long prompt compared with reading it: tokens a second, and memory above idle.

    python -m benchmarks.scoring
    python -m benchmarks.scoring --rounds 1 --tokens 1000

Law: every call goes to a node of its own that has read nothing but a short prompt, so that none finds a
cached prefix or memory of another one; which kind goes first changes from round to round.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO

import uvloop
from rich.console import Console

from benchmarks import report
from benchmarks.load import Endpoint
from benchmarks.memory_growth import measured_growth
from benchmarks.prompts import words
from benchmarks.servers import ServerDied, ours, running

MODEL_NAME = "smollm2-135m-instruct"
TIMEOUT_S = 900.0
SPEED_AT_LEAST = 0.85
MEMORY_WITHIN = 64 * 2**20

console = Console(stderr=True, highlight=False)

RequestMaker = Callable[[str, str], tuple[str, dict[str, object]]]


def _plain(model: str, prompt: str) -> tuple[str, dict[str, object]]:
    return "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}


def _score(top: int) -> RequestMaker:
    def make_request(model: str, prompt: str) -> tuple[str, dict[str, object]]:
        return "/v1/score", {"model": model, "prompt": prompt, "score_ranges": [[0, None]], "top_k": top}

    return make_request


KINDS: dict[str, RequestMaker] = {"prefill": _plain, "score, top 0": _score(0), "score, top 5": _score(5)}


@dataclass(frozen=True, slots=True)
class Measured:
    """One call."""

    tok_s: float
    above_idle_bytes: int


def main() -> None:
    options = _options()
    with tempfile.TemporaryFile() as log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            found = runner.run(_measure(options, log))
        except ServerDied as error:
            console.print(f"error: {error}", markup=False, soft_wrap=True)
            sys.exit(1)
    title = f"scoring · {options.tokens} tokens · {options.threads} threads · {options.rounds} rounds"
    rows = _rows(found)
    Console(width=120).print(report.table(rows, title))
    if options.json:
        report.write(rows, title, options.json)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoring", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rounds", type=int, default=3)
    add("--tokens", type=int, default=8000, help="of the prompt; the model's context is 8192")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--json", type=Path, help="also write the rows there")
    return parser.parse_args()


Found = defaultdict[str, list[Measured]]


async def _measure(options: argparse.Namespace, log: IO[bytes]) -> Found:
    found: Found = defaultdict(list)
    for number in range(options.rounds):
        names = list(KINDS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            measured = await _once(options, log, KINDS[name], f"{number}/{name}")
            found[name].append(measured)
            console.print(
                f"round {number + 1}/{options.rounds} · {name} · {measured.tok_s:.1f} tok/s · "
                f"{measured.above_idle_bytes / 2**20:.0f} MiB above idle",
                markup=False,
            )
    return found


async def _once(
    options: argparse.Namespace, log: IO[bytes], make_request: RequestMaker, seed: str
) -> Measured:
    random = Random(seed)
    launch = ours(MODEL_NAME, options.threads, kv_tokens=None)
    async with running(launch, log) as server:
        endpoint = server.endpoint
        for each in KINDS.values():  # the set-up of a first call is not the cost of a prompt
            await asyncio.to_thread(_call, endpoint, *each(endpoint.model, words(random, 600)))
        prompt = words(random, options.tokens)
        async with measured_growth(server.pid) as gauge:
            began_s = time.perf_counter()
            answer = await asyncio.to_thread(_call, endpoint, *make_request(endpoint.model, prompt))
            elapsed_s = time.perf_counter() - began_s
    usage = answer["usage"]
    if usage["prompt_tokens"] != options.tokens:
        raise ServerDied(f"the prompt has {usage['prompt_tokens']} tokens, expected {options.tokens}")
    return Measured(options.tokens / elapsed_s, gauge.grown_bytes)


def _call(endpoint: Endpoint, path: str, body: dict[str, object]) -> dict[str, dict[str, int]]:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=TIMEOUT_S)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    if answer.status != 200:
        raise ServerDied(f"{path} answered {answer.status}: {data[:300].decode(errors='replace')}")
    decoded: dict[str, dict[str, int]] = json.loads(data)
    return decoded


def _rows(found: Found) -> list[report.Row]:
    """Scoring in the first column, plain prefill in the second."""
    rows = []
    plain = found["prefill"]
    for name in list(KINDS)[1:]:
        scored = found[name]
        rates = [each.tok_s for each in scored], [each.tok_s for each in plain]
        rows.append(report.row(name, "score | prefill", "tok/s", *rates, report.at_least(SPEED_AT_LEAST)))
        # The library touches all of its KV when it makes a context: what grows afterwards is everything else.
        sizes = [float(each.above_idle_bytes) for each in scored]
        beside = [float(each.above_idle_bytes) for each in plain]
        rows.append(
            report.row(name, "above idle, KV aside", "MiB", sizes, beside, report.within(MEMORY_WITHIN))
        )
    return rows


if __name__ == "__main__":
    main()
