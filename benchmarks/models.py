"""The cost of managing models: finding one of ten thousand files, describing one, swapping one.

    python -m benchmarks.models

prints a table of medians against their bounds, `--json` one JSON list; the exit status is 1 when a bound is
missed. Use a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks import swapping
from benchmarks.servers import model_path
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.naming.resolver import LocalFileSource, resolve
from ganglion.registry.stores.finder import ModelFinder

FILES = 10_000
FOLDERS = 100
ROUNDS = 7
RESOLVE_BOUND_MS = 200.0
FACTS_BOUND_MS = 20.0
LOAD_BOUND_MS = 600.0
MOST_GROWTH = 1.05
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure, the median of its rounds, and what it must not exceed."""

    subject: str
    value: float
    bound: float | None = None
    unit: str = "ms"

    @property
    def is_met(self) -> bool:
        return self.bound is None or self.value <= self.bound


def tiny_model() -> bytes:
    """The smallest file that is a model: three keys, one weight."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    keys = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for key in ("llama.block_count", "llama.context_length"):
        keys += text(key) + struct.pack("<II", 4, 512)
    tensor = text("token_embd.weight") + struct.pack("<IQIQ", 1, 8, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + keys + tensor
    return head + bytes(-len(head) % 32) + bytes(32)


def make_files(folder: Path, count: int) -> None:
    """Write so many models, by maker, as people sort them."""
    content = tiny_model()
    for number in range(count):
        file = folder / f"maker-{number % FOLDERS:03}" / f"model-{number:05}-Q4_K_M.gguf"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def find(name: str, home: Path) -> Path:
    """From a name to a file as a new process does it: read the index, look at every file, choose one."""
    finder = ModelFinder(home, {"HOME": str(home)}, folders=[], may_download=False)
    source = resolve(name, finder.catalogue(), may_be_path=False).source
    assert isinstance(source, LocalFileSource)
    return source.path


def measure_finding(count: int) -> list[Measured]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        make_files(home / "models", count)
        last = f"MODEL-{count - 1:05}-q4_k_m"
        cold_ms = milliseconds(lambda: find(last, home), rounds=1)
        warm_ms = milliseconds(lambda: find(last, home), rounds=ROUNDS)
    return [
        Measured(f"find one of {count} files, no index yet", cold_ms),
        Measured(f"find one of {count} files, warm index", warm_ms, RESOLVE_BOUND_MS),
    ]


def measure_facts() -> Measured:
    path = model_path()
    taken_ms = milliseconds(lambda: read_facts(path), rounds=ROUNDS)
    return Measured(f"metadata of {path.name}", taken_ms, FACTS_BOUND_MS)


def measure_swapping(cycles: int) -> list[Measured]:
    swapped = asyncio.run(swapping.measure(cycles))
    return [
        Measured(
            "load of the embedded model, inside the worker", swapped.worker_load_s * 1000, LOAD_BOUND_MS
        ),
        Measured("the same over HTTP, process and all", swapped.load_s * 1000),
        Measured("unload over HTTP", swapped.unload_s * 1000),
        Measured("memory without a model, first", swapped.baseline_bytes / MIB, unit="MiB"),
        Measured(f"memory without a model, after {cycles} cycles", swapped.last_bytes / MIB, unit="MiB"),
        Measured("the last of the first", swapped.growth, MOST_GROWTH, unit="x"),
        Measured("two models that did not answer at once", float(not swapped.both_answered), 0.0, unit=""),
    ]


def milliseconds(work: Callable[[], object], *, rounds: int) -> float:
    """The median of some runs."""
    taken: list[float] = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started_s)
    return median(taken) * 1000


def table(rows: list[Measured]) -> Table:
    drawn = Table()
    drawn.add_column("measure")
    for name in ("median", "bound", "verdict"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        bound = "" if row.bound is None else f"≤ {row.bound:g} {row.unit}"
        verdict = "" if row.bound is None else "ok" if row.is_met else "MISS"
        drawn.add_row(row.subject, f"{row.value:.4g} {row.unit}", bound, verdict)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--cycles", type=int, default=swapping.CYCLES, help="loads and unloads of one model")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    arguments = parser.parse_args()
    rows = [*measure_finding(arguments.files), measure_facts(), *measure_swapping(arguments.cycles)]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        Console().print(table(rows))
    sys.exit(not all(row.is_met for row in rows))


if __name__ == "__main__":
    main()
