"""Prefix-cache hits of conversations in a fleet: cached tokens behind a gateway.

    python -m benchmarks.affinity
    python -m benchmarks.affinity --conversations 4 --turns 3

Law: the same conversations run on one node, on three behind the gateway, and on three of which each turn
takes one at random; the share of the prompts that was cached is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import IO

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.load import ChatRequest, Endpoint, Message, chat
from benchmarks.prompts import words
from benchmarks.servers import Launch, ServerDied, ours, running

MODEL_NAME = "smollm2-135m-instruct"
NODES = 3
QUESTION_WORDS = 60
ANSWER_TOKENS = 32
TIMEOUT_S = 600.0
AT_LEAST = 0.9
console = Console(stderr=True, highlight=False)

Pick = Callable[[], Endpoint]


def main() -> None:
    options = _options()
    with tempfile.TemporaryFile() as log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            shares = runner.run(_measure(options, log))
        except ServerDied as error:
            console.print(f"error: {error}", markup=False, soft_wrap=True)
            sys.exit(1)
    title = f"{options.conversations} conversations x {options.turns} turns"
    table = Table(title=f"prompt tokens found in a prefix cache · {title}")
    for head in ("", "cached", "of one node's", f"target {AT_LEAST}"):
        table.add_column(head)
    for name, share in shares.items():
        ratio = share / shares["one node"]
        verdict = "" if name != "gateway, 3 nodes" else ("reached" if ratio >= AT_LEAST else "MISSED")
        table.add_row(name, f"{share:.1%}", f"{ratio:.2f}", verdict)
    Console(width=100).print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.affinity", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    return parser.parse_args()


def _gateway(nodes: list[Endpoint]) -> Launch:
    command = [str(Path(sys.prefix) / "bin" / "ganglion"), "gateway", "--port", "{port}", "--no-grpc"]
    for index, node in enumerate(nodes):
        command += ["--node", f"n{index}=http://{node.host}:{node.port}"]
    return Launch("gateway", tuple(command), MODEL_NAME)


async def _measure(options: argparse.Namespace, log: IO[bytes]) -> dict[str, float]:
    node = ours(MODEL_NAME, 1, extra="--no-grpc")
    async with running(node, log) as one:
        console.print("one node …")
        alone = await _run_conversations(options, lambda: one.endpoint)
    shares = {"one node": alone}
    for name in ("gateway, 3 nodes", "by chance, 3 nodes"):
        async with AsyncExitStack() as stack:
            nodes = [(await stack.enter_async_context(running(node, log))).endpoint for _ in range(NODES)]
            chance = Random(1)
            pick: Pick = lambda nodes=nodes, chance=chance: chance.choice(nodes)  # noqa: E731
            if name.startswith("gateway"):
                gateway = await stack.enter_async_context(running(_gateway(nodes), log))
                pick = lambda gateway=gateway: gateway.endpoint  # noqa: E731
            console.print(f"{name} …")
            shares[name] = await _run_conversations(options, pick)
    return shares


async def _run_conversations(options: argparse.Namespace, pick: Pick) -> float:
    """Run all conversations together; the share of their prompts' tokens that was cached."""
    counts = await asyncio.gather(
        *(_conversation(number, options.turns, pick) for number in range(options.conversations))
    )
    return sum(cached for cached, _ in counts) / sum(read for _, read in counts)


async def _conversation(number: int, turns: int, pick: Pick) -> tuple[int, int]:
    random = Random(number)
    history: list[Message] = []
    cached_tokens = prompt_tokens = 0
    for _ in range(turns):
        history.append(Message("user", words(random, QUESTION_WORDS)))
        record = await chat(pick(), ChatRequest(tuple(history), ANSWER_TOKENS), TIMEOUT_S)
        if record.error is not None:
            raise ServerDied(record.error)
        history.append(Message("assistant", record.text))
        cached_tokens += record.cached_tokens
        prompt_tokens += record.prompt_tokens
    return cached_tokens, prompt_tokens


if __name__ == "__main__":
    main()
