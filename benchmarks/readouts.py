"""The cost of readouts: decoding and prefill without concepts, with some loaded, and with readouts requested.

    python -m benchmarks.readouts
    python -m benchmarks.readouts --rounds 1 --output-tokens 16 --prompt-tokens 200

Law: two nodes run, one of them without a concept pack, and only one works at a time; the three ways take
turns, and which one goes first changes from round to round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO

import grpc
import numpy as np
import uvloop
from rich.console import Console
from tests.support.ports import free_port

from benchmarks import report
from benchmarks.load import Record
from benchmarks.measure import decode_rate
from benchmarks.prompts import words
from benchmarks.salience import Node, connected
from benchmarks.servers import HOST, PARALLEL, ServerDied, model_path, ours, running
from ganglion.engines.concepts.pack import ConceptPack, PackManifest, PackModel, write_pack
from ganglion.registry.files.gguf import read_facts

MODEL_NAME = "smollm2-135m-instruct"
LAYERS, CONCEPTS = (7, 14, 21, 28), 8
HIDDEN_SIZE = 576
PROMPT_TOKENS = 64
OPEN_END = 2**32 - 1
EVERYTHING = ((0, OPEN_END),)
REQUESTED_AT_LEAST = 0.91
LOADED_AT_LEAST = 1.0

console = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a node."""

    name: str
    has_concepts: bool
    is_requested: bool


OFF, LOADED, REQUESTED = Way("off", False, False), Way("loaded", True, False), Way("requested", True, True)
WAYS = (OFF, LOADED, REQUESTED)

Rates = defaultdict[tuple[str, str], list[float]]
"""Tokens a second by what was measured and way, one for each round."""


def main() -> None:
    options = _options()
    rates: Rates = defaultdict(list)
    with tempfile.TemporaryFile() as log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_measure(options, rates, log))
        except (ServerDied, grpc.aio.AioRpcError) as error:
            console.print(f"error: {error}", markup=False, soft_wrap=True)
            log.seek(0)
            console.print(log.read()[-2000:].decode(errors="replace"), markup=False)
            sys.exit(1)
    title = (
        f"readouts · {len(LAYERS)} layers x {CONCEPTS} concepts · {options.threads} threads · "
        f"{options.rounds} rounds"
    )
    rows = _rows(rates)
    Console(width=120).print(report.table(rows, title))
    if options.json:
        report.write(rows, title, options.json)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.readouts", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--rounds", type=int, default=5)
    add("--output-tokens", type=int, default=96)
    add("--prompt-tokens", type=int, default=2000)
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--json", type=Path, help="also write the rows there")
    return parser.parse_args()


def write_random_pack(path: Path) -> None:
    """Random directions: what a readout costs does not depend on what it means."""
    facts = read_facts(model_path())
    chance = np.random.default_rng(1)
    drawn = {layer: chance.normal(size=(CONCEPTS, HIDDEN_SIZE)) for layer in LAYERS}
    vectors = {
        layer: (each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32)
        for layer, each in drawn.items()
    }
    model = PackModel(
        name=MODEL_NAME,
        architecture=facts.architecture,
        hidden_size=HIDDEN_SIZE,
        block_count=facts.block_count,
    )
    names = [f"direction {number}" for number in range(CONCEPTS)]
    manifest = PackManifest(name="random", concepts=names, layers=list(LAYERS), model=model)
    write_pack(ConceptPack(manifest, vectors), path)


async def _measure(options: argparse.Namespace, rates: Rates, log: IO[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "random.safetensors"
        write_random_pack(pack)
        ports = free_port(), free_port()
        plain = ours(MODEL_NAME, options.threads, extra=f"--grpc-port {ports[0]}")
        loaded = ours(MODEL_NAME, options.threads, extra=f"--grpc-port {ports[1]} --concepts {pack}")
        async with (
            running(plain, log),
            running(loaded, log),
            connected(HOST, ports[0], MODEL_NAME) as without,
            connected(HOST, ports[1], MODEL_NAME) as having,
        ):
            for node in (without, having):
                await _once(node, OFF, PARALLEL, options, "warm-up")
            for number in range(options.rounds):
                await _round(number, without, having, options, rates)


async def _round(number: int, without: Node, having: Node, options: argparse.Namespace, rates: Rates) -> None:
    first = number % len(WAYS)
    for streams in (1, PARALLEL, 0):
        for way in WAYS[first:] + WAYS[:first]:
            node = having if way.has_concepts else without
            what, rate = await _once(node, way, streams, options, f"{number}/{way.name}")
            rates[what, way.name].append(rate)
            console.print(f"round {number + 1}/{options.rounds} · {what} · {way.name} · {rate:.1f} tok/s")


async def _once(
    node: Node, way: Way, streams: int, options: argparse.Namespace, seed: str
) -> tuple[str, float]:
    """A rate and its name; no streams mean a long prompt alone."""
    random = Random(f"{seed}/{streams}")
    readout = EVERYTHING if way.is_requested else ()
    if not streams:
        tokens = await node.tokenize(words(random, options.prompt_tokens))
        session = await node.open()
        result = await node.generate(session, tokens, 0, 0, readout=readout)
        await node.close(session)
        return f"prefill of {options.prompt_tokens}", len(tokens) / result.elapsed_s

    async def stream(text: str) -> Record:
        tokens = await node.tokenize(text)
        session = await node.open()
        result = await node.generate(session, tokens, 0, options.output_tokens, readout=readout)
        await node.close(session)
        return result.record()

    records = await asyncio.gather(*(stream(words(random, PROMPT_TOKENS)) for _ in range(streams)))
    rate = decode_rate(records, streams)
    if rate is None:
        raise ServerDied("the streams never ran all at once: ask for more --output-tokens")
    return f"{streams} stream{'s' if streams > 1 else ''}", rate


def _rows(rates: Rates) -> list[report.Row]:
    """The way in the first column, the node without concepts in the second."""
    return [
        report.row(
            what,
            f"{way.name} | off",
            "tok/s",
            rates[what, way.name],
            rates[what, OFF.name],
            report.at_least(REQUESTED_AT_LEAST if way.is_requested else LOADED_AT_LEAST),
        )
        for what in dict.fromkeys(what for what, _ in rates)
        for way in (LOADED, REQUESTED)
    ]


if __name__ == "__main__":
    main()
