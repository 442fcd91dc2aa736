"""The cost of a JSON schema: tokens a second with one against without, at 16 streams, ours and the peer's.

    python -m benchmarks.constrained
    python -m benchmarks.constrained --rounds 1 --requests 16 --output-tokens 16 --skip-peer

Law: both rates of a ratio come from one server in one run, one after the other; which is first alternates.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import IO

import uvloop
from rich.console import Console

from benchmarks import report
from benchmarks.load import ChatRequest, Endpoint, Message, Record, chat
from benchmarks.measure import Summary, summarise
from benchmarks.prompts import words
from benchmarks.servers import PARALLEL, Launch, ServerDied, ours, peer, running

MODEL_NAME = "smollm2-135m-instruct"
PROMPT_TOKENS = 64
SCHEMA = json.dumps(
    {
        "type": "array",
        "minItems": 500,  # so that no answer is complete before all tokens that are counted were written
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "kind": {"enum": ["animal", "plant", "thing"]},
                "size": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "is_known": {"type": "boolean"},
            },
            "required": ["name", "kind", "size", "tags", "is_known"],
            "additionalProperties": False,
        },
    }
)
AT_LEAST = 0.80

console = Console(stderr=True, highlight=False)


def main() -> None:
    options = _options()
    with tempfile.TemporaryFile() as log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            rates = runner.run(_measure(options, log))
        except ServerDied as error:
            console.print(f"error: {error}", markup=False, soft_wrap=True)
            sys.exit(1)
    title = f"a JSON schema's cost · {PARALLEL} streams · {options.threads} threads · {options.rounds} rounds"
    Console(width=120).print(report.table(_rows(rates), title))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.constrained", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--rounds", type=int, default=3)
    add("--requests", type=int, default=32)
    add("--output-tokens", type=int, default=128)
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--skip-peer", action="store_true")
    add("--skip-ours", action="store_true")
    return parser.parse_args()


Rates = defaultdict[tuple[str, bool], list[float]]
"""Tokens a second by server and whether a schema was requested, one for each round."""


async def _measure(options: argparse.Namespace, log: IO[bytes]) -> Rates:
    rates: Rates = defaultdict(list)
    for number in range(options.rounds):
        for launch in _launches(options):
            async with running(launch, log) as server:
                for has_schema in (False, True) if number % 2 == 0 else (True, False):
                    summary = await _burst(server.endpoint, options, number, has_schema=has_schema)
                    rates[launch.server, has_schema].append(summary.tok_s)
                    console.print(
                        f"round {number + 1}/{options.rounds} · {launch.server} · "
                        f"{'json_schema' if has_schema else 'free'} · {summary.tok_s:.1f} tok/s"
                        + (f" · {summary.failures} failed: {summary.errors[0]}" if summary.errors else ""),
                        markup=False,
                        soft_wrap=True,
                    )
    return rates


def _launches(options: argparse.Namespace) -> list[Launch]:
    mine = [] if options.skip_ours else [ours(MODEL_NAME, options.threads)]
    theirs = [] if options.skip_peer else [peer(MODEL_NAME, options.threads, is_unified=True)]
    return mine + theirs


async def _burst(
    endpoint: Endpoint, options: argparse.Namespace, number: int, *, has_schema: bool
) -> Summary:
    random = Random(f"constrained/{number}")
    chat_requests = [
        ChatRequest((Message("user", words(random, PROMPT_TOKENS)),), options.output_tokens, number)
        for _ in range(options.requests)
    ]
    waiting = iter(
        [replace(chat_request, json_schema=SCHEMA) for chat_request in chat_requests]
        if has_schema
        else chat_requests
    )
    records: list[Record] = []
    async with asyncio.TaskGroup() as clients:
        for _ in range(PARALLEL):
            clients.create_task(_client(endpoint, waiting, records))
    return summarise(records, streams=PARALLEL)


async def _client(endpoint: Endpoint, waiting: Iterator[ChatRequest], records: list[Record]) -> None:
    for chat_request in waiting:
        records.append(await chat(endpoint, chat_request))


def _rows(rates: Rates) -> list[report.Row]:
    """The first two rows have the rate with a schema beside the free one, as the servers' columns."""
    rows = [
        report.row(server, "json_schema | free", "tok/s", rates[server, True], rates[server, False], target)
        for server, target in (("ganglion", report.at_least(AT_LEAST)), ("peer", None))
        if rates[server, True]
    ]
    both = rates["ganglion", True], rates["peer", True]
    return [*rows, report.row("both", "json_schema", "tok/s", *both)] if all(both) else rows


if __name__ == "__main__":
    main()
