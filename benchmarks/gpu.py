"""Measure a GPU: our node over HTTP beside llama-batched-bench and vLLM alone, in one table with ratios.

    python -m benchmarks.gpu --batched-bench build/bin/llama-batched-bench
    python -m benchmarks.gpu --vllm CHECKPOINT          # with GANGLION_VLLM_PYTHON set, beside both
    python -m benchmarks.gpu --tiny                     # the same on processors, to see that it works

The model is of random weights in the shape of Llama 3 8B. JSON goes to `benchmarks/results/`; where a part is
missing or fails, the rest goes on. Law: one server runs at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from rich.console import Console
from rich.table import Table

from benchmarks.load import Endpoint
from benchmarks.random_model import EIGHT_BILLION, TINY, Shape, write_random_model
from benchmarks.servers import Launch, ServerDied, running
from benchmarks.token_load import Load, run_load, run_stall

RESULTS: Final = Path(__file__).parent / "results"
_ALONE: Final = Path(__file__).parent / "vllm_alone.py"
_BESIDE: Final = 8
"""Streams beside a long prompt."""
_TEMPERATURE, _TOP_P = 0.8, 0.95
_PATIENCE_S: Final = 1800.0

console = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how large."""

    shape: Shape
    streams: tuple[int, ...]
    prompt: int
    output: int
    long: tuple[int, ...]
    beside_output: int


FULL: Final = Plan(EIGHT_BILLION, (1, 16, 64, 256), 128, 128, (4096, 32768), 600)
SMALL: Final = Plan(TINY, (1, 4), 16, 8, (512,), 60)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure of one server; `unit` is tok/s or s."""

    server: str
    measure: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on ours over the other's."""

    measure: str
    other: str
    bound: float
    is_floor: bool


def main() -> None:
    options = _options()
    plan = SMALL if options.tiny else FULL
    figures: list[Figure] = []
    problems: list[str] = []

    def part(name: str, measure: Callable[[], list[Figure]]) -> None:
        console.print(f"{name} ...")
        try:
            figures.extend(measure())
        except (ServerDied, OSError, ValueError, subprocess.SubprocessError) as error:
            problems.append(f"{name}: {error}")
            console.print(f"  failed: {error}")

    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "server.log").open("wb") as log:
        model = options.model or Path(folder) / f"{plan.shape.name}.gguf"
        if not model.exists():
            console.print(f"writing {model} ...")
            write_random_model(model, plan.shape)
        if options.batched_bench:
            part("llama-batched-bench", lambda: _batched_bench(options.batched_bench, model, plan))
        part(
            "ganglion, llama", lambda: asyncio.run(_node("ganglion", _ours(model, plan, options), plan, log))
        )
        if options.vllm:
            part("vLLM alone", lambda: _vllm_alone(options.vllm, plan))
            other = _ours(options.vllm, plan, options, "--engine", "vllm")
            part("ganglion, vllm", lambda: asyncio.run(_node("ganglion-vllm", other, plan, log)))
        log.flush()
        if problems:
            console.print((Path(folder) / "server.log").read_bytes()[-4000:].decode(errors="replace"))
    _report(figures, problems, plan, is_tiny=options.tiny)
    if problems or not figures:
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few tokens, on processors")
    parser.add_argument("--model", type=Path, help="a GGUF file in place of a random one, kept if written")
    parser.add_argument("--batched-bench", type=Path, help="the program, built with the same library")
    parser.add_argument("--vllm", type=Path, help="a checkpoint for vLLM: its config.json is enough")
    parser.add_argument("--flags", default="", help="further flags of our node")
    return parser.parse_args()


def _ours(model: Path, plan: Plan, options: argparse.Namespace, *more: str) -> Launch:
    longest = max(plan.long) + plan.beside_output
    command = [str(Path(sys.executable).parent / "ganglion"), "serve", str(model), "--port", "{port}"]
    command += ["--context", str(longest), "--parallel", str(max(plan.streams))]
    return Launch("ganglion", (*command, *more, *options.flags.split()), model.stem)


async def _node(server: str, launch: Launch, plan: Plan, log: IO[bytes]) -> list[Figure]:
    """All loads against one node, which has answered once before."""
    async with running(launch, log) as started:
        endpoint = started.endpoint
        figures = [Figure(server, "cold start", started.cold_start_s, "s")]
        await asyncio.to_thread(run_load, endpoint, _load(plan, 1))  # warm
        for streams in plan.streams:
            figures += await _rates(server, endpoint, plan, streams)
        for length in plan.long:
            prompt = Load(1, length, 4, plan.shape.vocabulary)
            alone = await asyncio.to_thread(run_load, endpoint, prompt)
            figures.append(Figure(server, f"prompt of {length}", alone.first_median_s, "s"))
            beside = Load(_BESIDE, plan.prompt, plan.beside_output, plan.shape.vocabulary)
            stall = await run_stall(endpoint, beside, length, wait_s=1.0)
            figures.append(Figure(server, f"worst gap beside {length}", stall.gap_worst_s, "s"))
        return figures


async def _rates(server: str, endpoint: Endpoint, plan: Plan, streams: int) -> list[Figure]:
    greedy = await asyncio.to_thread(run_load, endpoint, _load(plan, streams))
    drawn = await asyncio.to_thread(run_load, endpoint, _load(plan, streams, is_drawn=True))
    if greedy.failed or drawn.failed:
        raise ValueError(f"{greedy.failed + drawn.failed} of {2 * streams} streams failed")
    return [
        Figure(server, f"{streams} streams", greedy.tokens_per_s, "tok/s"),
        Figure(server, f"{streams} sampled", drawn.tokens_per_s, "tok/s"),
        Figure(server, f"first token of {streams}", greedy.first_median_s, "s"),
        Figure(server, f"all first tokens of {streams}", greedy.first_worst_s, "s"),
    ]


def _load(plan: Plan, streams: int, *, is_drawn: bool = False) -> Load:
    chance = (_TEMPERATURE, _TOP_P) if is_drawn else (0.0, 1.0)
    return Load(streams, plan.prompt, plan.output, plan.shape.vocabulary, *chance)


def _batched_bench(program: Path, model: Path, plan: Plan) -> list[Figure]:
    """llama.cpp's own loop without a server: the limit of its kernels."""
    figures: list[Figure] = []
    runs = [(plan.prompt, plan.output, plan.streams), *((length, 4, (1,)) for length in plan.long)]
    for prompt, output, streams in runs:
        cells = (prompt + output) * max(streams)
        command = [
            str(program),
            "-m",
            str(model),
            "-ngl",
            "999",
            "-c",
            str(cells),
            "-b",
            "2048",
            "-ub",
            "512",
        ]
        command += ["-npp", str(prompt), "-ntg", str(output), "-npl", ",".join(map(str, streams))]
        command += ["--output-format", "jsonl"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=_PATIENCE_S, text=True)
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                figures += _of_bench(json.loads(line), prompt in plan.long)
    return figures


def _of_bench(row: dict[str, float], is_long: bool) -> list[Figure]:
    streams, server = int(row["pl"]), "llama-batched-bench"
    if is_long:
        return [Figure(server, f"prompt of {int(row['pp'])}", row["t_pp"], "s")]
    rate = streams * row["tg"] / (row["t_pp"] + row["t_tg"])
    return [
        Figure(server, f"{streams} streams", rate, "tok/s"),
        Figure(server, f"all first tokens of {streams}", row["t_pp"], "s"),
    ]


def _vllm_alone(checkpoint: Path, plan: Plan) -> list[Figure]:
    """AsyncLLM in a process of its own environment, on the same loads."""
    python = os.environ.get("GANGLION_VLLM_PYTHON")
    if python is None:
        raise ValueError("GANGLION_VLLM_PYTHON names no environment with vLLM")
    asked = {
        "checkpoint": str(checkpoint),
        "streams": plan.streams,
        "prompt": plan.prompt,
        "output": plan.output,
        "long": plan.long,
        "vocabulary": plan.shape.vocabulary,
        "sampled": [_TEMPERATURE, _TOP_P],
    }
    command = [python, str(_ALONE), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=_PATIENCE_S, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"measure"')]
    return [Figure("vllm", row["measure"], row["value"], row["unit"]) for row in rows]


def goals(plan: Plan) -> list[Goal]:
    """What ours is to reach of the other's, for each measure that both have."""
    floors = {1: 0.98, 16: 0.95, 64: 0.85, 256: 0.8}
    bench = "llama-batched-bench"
    found = [Goal(f"{each} streams", bench, floors.get(each, 0.8), True) for each in plan.streams]
    found += [Goal(f"prompt of {each}", bench, 1.1, False) for each in plan.long]
    found.append(Goal(f"all first tokens of {plan.streams[-1]}", bench, 1.3, False))
    for kind in ("streams", "sampled"):
        found += [Goal(f"{each} {kind}", "vllm", 0.97, True) for each in plan.streams]
    return found


def _report(figures: list[Figure], problems: list[str], plan: Plan, *, is_tiny: bool) -> None:
    values = {(each.server, each.measure): each.value for each in figures}
    servers = list(dict.fromkeys(each.server for each in figures))
    table = Table("measure", *servers, "ratios")
    ratios: list[dict[str, object]] = []
    for goal in goals(plan):
        ours = values.get(("ganglion-vllm" if goal.other == "vllm" else "ganglion", goal.measure))
        other = values.get((goal.other, goal.measure))
        if ours is not None and other:
            is_met = ours / other >= goal.bound if goal.is_floor else ours / other <= goal.bound
            ratios.append(asdict(goal) | {"ratio": ours / other, "is_met": is_met})
    for server in ("ganglion", "ganglion-vllm"):
        for streams in plan.streams:
            pair = values.get((server, f"{streams} sampled")), values.get((server, f"{streams} streams"))
            if pair[0] is not None and pair[1]:
                met = {"ratio": pair[0] / pair[1], "is_met": pair[0] / pair[1] >= 0.95}
                ratios.append(asdict(Goal(f"{streams} sampled", f"{server} greedy", 0.95, True)) | met)
    for measure, unit in dict.fromkeys((each.measure, each.unit) for each in figures):
        cells = [values.get((server, measure)) for server in servers]
        shown = [
            f"{each['ratio']:.2f} of {each['other']}{'' if each['is_met'] or is_tiny else ' MISS'}"
            for each in ratios
            if each["measure"] == measure
        ]
        table.add_row(
            f"{measure}, {unit}",
            *("" if each is None else f"{each:.4g}" for each in cells),
            *([", ".join(shown)]),
        )
    Console(highlight=False).print(table)
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"gpu-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    whole = {
        "is_tiny": is_tiny,
        "figures": [asdict(each) for each in figures],
        "ratios": ratios,
        "problems": problems,
    }
    file.write_text(json.dumps(whole, indent=1))
    console.print(f"written to {file}")


if __name__ == "__main__":
    main()
