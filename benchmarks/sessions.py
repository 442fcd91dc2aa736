"""The cost and the savings of token sessions: memory, a warm token, forks, appends, streams, conversations.

    python -m benchmarks.sessions
    python -m benchmarks.sessions --only warm,fork --rounds 1
    python -m benchmarks.sessions --rounds 1 --sessions 20 --tokens-scale 0.1 --turns 3

Law: both numbers of a ratio come from one run, taking turns round by round. The second column of the table is
what a row names after its bar. What gRPC adds to a token is the difference of the median gaps at all streams,
over the streams: each step gives every stream one token, and all of these have to be carried.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import IO

import grpc
import uvloop
from rich.console import Console
from tests.support.ports import free_port

from benchmarks import bare, conversations, report, streaming
from benchmarks.conversations import Turn, relayed
from benchmarks.footprint import own_pss_bytes, pss_bytes
from benchmarks.load import Endpoint
from benchmarks.prompts import words
from benchmarks.salience import Node, connected
from benchmarks.servers import (
    HOST,
    PARALLEL,
    ServerDied,
    model_path,
    ours,
    peer,
    running,
)

MODEL_NAME = "smollm2-135m-instruct"
PROMPT_TOKENS = (8, 64)
"""The shortest and the longest prompt of the many sessions."""
ANSWER_TOKENS = 64
OPENERS = 16
SETTLE_S = 2.0
FORKED_TOKENS, APPENDED_TOKENS = 2000, 4000
FORKS, APPENDS, WARM_TOKENS = 32, 16, 64

console = Console(stderr=True, highlight=False)

Numbers = defaultdict[str, list[float]]
"""The measured figures by name, one for each round."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A node under measurement."""

    node: Node
    endpoint: Endpoint
    pid: int
    grpc_port: int
    options: argparse.Namespace
    found: Numbers

    def scaled(self, tokens: int) -> int:
        return max(int(tokens * self.options.tokens_scale), 16)


def main() -> None:
    options = _options()
    found: Numbers = defaultdict(list)
    status = 0
    with tempfile.TemporaryFile() as log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_measure(options, found, log))
        except (ServerDied, grpc.aio.AioRpcError) as error:
            console.print(f"error: {error}", markup=False, soft_wrap=True)
            log.seek(0)
            console.print(log.read()[-2000:].decode(errors="replace"), markup=False)
            status = 1
    title = f"token sessions · {options.threads} threads · {options.rounds} rounds"
    rows = _rows(found)
    Console(width=120).print(report.table(rows, title))
    if options.json:
        report.write(rows, title, options.json)
    sys.exit(status)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sessions", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--rounds", type=int, default=3)
    add("--sessions", type=int, default=1000, help="open at once, for their memory")
    add("--turns", type=int, default=17, help="of a conversation, about 120 tokens each")
    add("--output-tokens", type=int, default=128, help="of each stream")
    add(
        "--tokens-scale",
        type=float,
        default=1.0,
        help="scales the lengths of the long sessions, for a trial run",
    )
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--only", default=",".join([*PARTS, "conversation"]), help="parts, with commas between them")
    add("--skip-peer", action="store_true")
    add("--json", type=Path, help="also write the rows there")
    return parser.parse_args()


async def _measure(options: argparse.Namespace, found: Numbers, log: IO[bytes]) -> None:
    chosen = options.only.split(",")
    for name, part in PARTS.items():
        if name in chosen and not (name == "warm" and "memory" in chosen):  # which measures it among many
            async with _bench(options, found, log) as bench:
                await part(bench)
            console.print(f"{name} is measured")
    if "streams" in chosen:
        for number in range(options.rounds):
            texts = streaming.texts(f"streams/{number}")
            gap = await streaming.by_engine(MODEL_NAME, options.threads, texts, options.output_tokens)
            found["engine gap"].append(gap)
    if "conversation" in chosen:
        await _conversations(options, found, log)


@asynccontextmanager
async def _bench(options: argparse.Namespace, found: Numbers, log: IO[bytes]) -> AsyncIterator[Bench]:
    port = free_port()
    launch = ours(MODEL_NAME, options.threads, extra=f"--grpc-port {port}")
    async with running(launch, log) as server, connected(HOST, port, server.endpoint.model) as node:
        yield Bench(node, server.endpoint, server.pid, port, options, found)


async def _memory(bench: Bench) -> None:
    """The memory of empty sessions, then of their tokens."""
    random = Random("memory")
    count = bench.options.sessions
    lengths = [random.randint(*PROMPT_TOKENS) for _ in range(count)]
    prompts = [await bench.node.tokenize(words(random, length)) for length in lengths]
    await bench.node.generate(await bench.node.open(), prompts[0], 0, 1)  # what a first call sets up
    own, whole = await _weight(bench)
    sessions = [await bench.node.open() for _ in range(count)]
    opened, _ = await _weight(bench)
    waiting = iter(list(zip(sessions, prompts, strict=True)))

    async def fill() -> None:
        for session, tokens in waiting:
            await bench.node.generate(session, tokens, 0, 0)

    async with asyncio.TaskGroup() as fillers:
        for _ in range(OPENERS):
            fillers.create_task(fill())
    filled, whole_filled = await _weight(bench)
    tokens = sum(map(len, prompts))
    bench.found["server bytes a session"].append((opened - own) / count)
    bench.found["server bytes a token"].append((filled - opened) / tokens)
    bench.found["node bytes a token"].append((whole_filled - whole) / tokens)
    await _warm(bench)


async def _weight(bench: Bench) -> tuple[int, int]:
    await asyncio.sleep(SETTLE_S)
    return own_pss_bytes(bench.pid), pss_bytes(bench.pid)[0]


async def _warm(bench: Bench) -> None:
    """One token at a time in a session whose KV is there, and the same steps in a bare loop."""
    loop = bare.Loop(model_path(), bench.options.threads)
    prompt = await bench.node.tokenize(words(Random("warm"), bare.PROMPT_TOKENS))
    for number in range(bench.options.rounds):
        session = await bench.node.open()
        result = await bench.node.generate(session, prompt, 0, 1)
        steps: list[float] = []
        for _ in range(WARM_TOKENS):
            result = await bench.node.generate(session, (), result.done.total_tokens, 1)
            steps.append(result.elapsed_s)
        await bench.node.close(session)
        rate = await asyncio.to_thread(loop.rate, 1, is_unified=False, output_tokens=WARM_TOKENS)
        bench.found["warm token"].append(median(steps))
        bench.found["bare step"].append(1 / rate)
        console.print(f"round {number + 1} · warm {median(steps) * 1e3:.2f} ms · bare {1e3 / rate:.2f} ms")


async def _forks(bench: Bench) -> None:
    random = Random("fork")
    prompt = await bench.node.tokenize(words(random, bench.scaled(FORKED_TOKENS)))
    session = await bench.node.open()
    await bench.node.generate(session, prompt, 0, 0)
    for _ in range(bench.options.rounds):
        times: list[float] = []
        for _ in range(FORKS):
            began_s = time.perf_counter()
            fork = await bench.node.fork(session)
            times.append(time.perf_counter() - began_s)
            await bench.node.close(fork)
        bench.found["fork"].append(median(times))
    fork = await bench.node.fork(session)
    result = await bench.node.generate(fork, (), len(prompt), 1)
    bench.found["fork's tokens read again"].append(result.done.prompt_tokens - result.done.cached_tokens)


async def _appends(bench: Bench) -> None:
    random = Random("append")
    prompt = await bench.node.tokenize(words(random, bench.scaled(APPENDED_TOKENS)))
    session = await bench.node.open()
    result = await bench.node.generate(session, prompt, 0, 0)
    for _ in range(bench.options.rounds):
        times: list[float] = []
        for _ in range(APPENDS):
            result = await bench.node.generate(session, prompt[:1], result.done.total_tokens, 0)
            times.append(result.elapsed_s)
        bench.found["append"].append(median(times))
        bench.found["tokens read again"].append(result.done.prompt_tokens - result.done.cached_tokens)


async def _streams(bench: Bench) -> None:
    for number in range(bench.options.rounds):
        texts, tokens = streaming.texts(f"streams/{number}"), bench.options.output_tokens
        ways: list[tuple[str, Callable[[], Awaitable[float]]]] = [
            ("grpc", lambda: streaming.by_sessions(bench.node, texts, tokens)),  # noqa: B023  awaited here
            ("chat", lambda: streaming.by_chat(bench.endpoint, texts, tokens)),  # noqa: B023
        ]
        for name, gap in ways if number % 2 == 0 else reversed(ways):
            bench.found[f"{name} gap"].append(await gap())


async def _conversations(options: argparse.Namespace, found: Numbers, log: IO[bytes]) -> None:
    for number in range(options.rounds):
        questions = conversations.questions(f"talk/{number}", options.turns)
        async with _bench(options, found, log) as bench:
            async with (
                relayed(bench.grpc_port) as relay,
                connected(HOST, relay.listens_on, MODEL_NAME) as node,
            ):
                turns = await conversations.by_session(node, relay, questions, ANSWER_TOKENS)
            _note(found, "session", turns)
        # A node of its own: the chat would find the session's prefix in the cache.
        async with _bench(options, found, log) as bench, relayed(bench.endpoint.port) as relay:
            turns = await conversations.by_chat(bench.endpoint, relay, questions, ANSWER_TOKENS)
            _note(found, "history", turns)
        if not options.skip_peer:
            launch = peer(MODEL_NAME, options.threads, is_unified=True)
            async with running(launch, log) as server, relayed(server.endpoint.port) as relay:
                turns = await conversations.by_slot(server.endpoint, relay, questions, ANSWER_TOKENS)
                _note(found, "slot", turns)


def _note(found: Numbers, name: str, turns: list[Turn]) -> None:
    """The first turn sends and reads the same everywhere; the later turns show what sessions save."""
    later = turns[1:]
    noted = {
        "bytes": sum(turn.sent_bytes for turn in turns),
        "last bytes": turns[-1].sent_bytes,
        "TTFT": median(turn.ttft_s for turn in later),
        "read tokens": median(turn.read_tokens for turn in later),
    }
    for what, value in noted.items():
        found[f"{name} {what}"].append(value)
    console.print(f"{name} · " + " · ".join(f"{what} {value:,.3f}" for what, value in noted.items()))


PARTS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "memory": _memory,
    "warm": _warm,
    "fork": _forks,
    "append": _appends,
    "streams": _streams,
}


def _rows(found: Numbers) -> list[report.Row]:
    within, at_most = report.within, report.at_most
    added = [
        (grpc_gap - engine_gap) / PARALLEL
        for grpc_gap, engine_gap in zip(found["grpc gap"], found["engine gap"], strict=False)
    ]
    rows = [
        report.row("open sessions", "server, a session", "B", found["server bytes a session"], ()),
        report.row("open sessions", "server, a token", "B", found["server bytes a token"], ()),
        report.row("open sessions", "node with its KV, a token", "B", found["node bytes a token"], ()),
        report.row(
            "one warm token",
            "Generate | bare step",
            "ms",
            found["warm token"],
            found["bare step"],
            at_most(1.3),
        ),
        report.row("fork", f"of {FORKED_TOKENS} tokens", "ms", found["fork"], (), within(0.002)),
        report.row("fork", "tokens read again", "", found["fork's tokens read again"], (), within(1)),
        report.row("append", f"1 to {APPENDED_TOKENS} tokens", "ms", found["append"], ()),
        report.row("append", "tokens read again", "", found["tokens read again"], (), within(2)),
        report.row("16 streams", "gap | chat", "ms", found["grpc gap"], found["chat gap"]),
        report.row("16 streams", "gap | engine in process", "ms", found["grpc gap"], found["engine gap"]),
        report.row("16 streams", "added to a token", "µs", added, (), within(0.0003)),
        *(row for other in ("history", "slot") for row in _conversation_rows(found, other)),
    ]
    return [row for row in rows if row.ours is not None]


def _conversation_rows(found: Numbers, other: str) -> list[report.Row]:
    """A conversation as a session, beside another way to hold it."""
    measures: list[tuple[str, report.Unit, report.Target | None]] = [
        ("bytes", "B", None),
        ("last bytes", "B", report.at_most(0.1)),
        ("TTFT", "ms", report.at_most(1.0)),
        ("read tokens", "", None),
    ]
    return [
        report.row(
            "conversation",
            f"{what} | {other}",
            unit,
            found[f"session {what}"],
            found[f"{other} {what}"],
            target,
        )
        for what, unit, target in measures
    ]


if __name__ == "__main__":
    main()
