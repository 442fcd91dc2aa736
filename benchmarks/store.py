"""The cost of storing a response: compared with the disk's own fsync, and with many writers at once.

python -m benchmarks.store [--folder DIR] [--url postgresql://…] [--seconds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from ganglion.store.database import Store
from ganglion.store.opening import open_store
from ganglion.store.response_store import StoredResponse

BODY = os.urandom(4096)
INPUT = os.urandom(2048)
LONE_WRITES = 400
WRITERS = 64
TARGET_PER_S = 1_000
TARGET_FSYNCS = 2.0


def response(name: str) -> StoredResponse:
    return StoredResponse("bench", name, 0.0, "completed", "echo", BODY, INPUT)


def fsync_s(folder: Path) -> float:
    """The median of appending a response's bytes to a file and syncing it, with nothing else in the way."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(LONE_WRITES):
            start_s = perf_counter()
            os.write(file.fileno(), BODY + INPUT)
            os.fdatasync(file.fileno())
            times.append(perf_counter() - start_s)
    return median(times)


async def lone_s(store: Store) -> list[float]:
    times = []
    for number in range(LONE_WRITES):
        start_s = perf_counter()
        await store.put(response(f"lone{number}"))
        times.append(perf_counter() - start_s)
    return times


async def sustained(store: Store, seconds: float) -> tuple[float, list[float]]:
    """Responses a second by many writers, and the wait of each."""
    times: list[float] = []
    end_s = perf_counter() + seconds

    async def write(writer: int) -> None:
        number = 0
        while (start_s := perf_counter()) < end_s:
            await store.put(response(f"many{writer}-{number}"))
            times.append(perf_counter() - start_s)
            number += 1

    start_s = perf_counter()
    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    return len(times) / (perf_counter() - start_s), times


def p99(times: list[float]) -> float:
    return quantiles(times, n=100)[98]


async def measure(folder: Path, url: str | None, seconds: float) -> dict[str, float]:
    disk_s = fsync_s(folder)
    store = await open_store(url or folder / "ganglion.db")
    try:
        alone = await lone_s(store)
        rate, times = await sustained(store, seconds)
    finally:
        await store.close()
    return {
        "fsync_p50_ms": disk_s * 1e3,
        "alone_p50_ms": median(alone) * 1e3,
        "alone_p99_ms": p99(alone) * 1e3,
        "alone_fsyncs": median(alone) / disk_s,
        "many_per_s": rate,
        "many_p50_ms": median(times) * 1e3,
        "many_p99_ms": p99(times) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    parser.add_argument("--url", help="a PostgreSQL server instead of a file")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = asyncio.run(measure(Path(folder), options.url, options.seconds))
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=2))
    if found["alone_fsyncs"] > TARGET_FSYNCS or found["many_per_s"] < TARGET_PER_S:
        raise SystemExit(f"missed: at most {TARGET_FSYNCS:g} fsyncs a response, {TARGET_PER_S} responses/s")


if __name__ == "__main__":
    main()
