"""Loading and unloading a model over and over: how long a load takes, and whether its memory comes back."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.footprint import pss_bytes
from benchmarks.load import ChatRequest, Endpoint, Message, chat
from benchmarks.servers import model_path, ours, running

CYCLES = 50
SETTLE_S = 0.5
WARM_UP = 3
"""Cycles before the baseline: the first ones fill caches that stay."""
ANSWER = ChatRequest((Message("user", "Say something."),), max_tokens=32)
_LOADED = re.compile(rb"worker \d+ loaded in ([0-9.]+) s")


@dataclass(frozen=True, slots=True)
class Swapping:
    """`worker_load_s` is what the worker itself took, from its start in Python to a loaded model."""

    cycles: int
    load_s: float
    worker_load_s: float
    unload_s: float
    baseline_bytes: int
    most_bytes: int
    last_bytes: int
    both_answered: bool

    @property
    def growth(self) -> float:
        """The memory without a model after the last cycle, as a share of the baseline."""
        return self.last_bytes / self.baseline_bytes


async def measure(cycles: int = CYCLES) -> Swapping:
    """Swap one model in and out of a node that runs, then have two models answer at once."""
    loads: list[float] = []
    unloads: list[float] = []
    sizes: list[int] = []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        other = Path(folder) / "other.gguf"
        other.symlink_to(model_path())
        async with running(ours("smollm2-135m-instruct", None, kv_tokens=None), log) as node:
            for cycle in range(WARM_UP + cycles):
                unloads.append(await _post(node.endpoint, "unload"))
                await asyncio.sleep(SETTLE_S)
                if cycle >= WARM_UP:
                    sizes.append(pss_bytes(node.pid)[0])
                loads.append(await _post(node.endpoint, "load"))
        both = await _two_at_once(other)
        log.seek(0)
        worker_loads = [float(found) for found in _LOADED.findall(log.read())]
    return Swapping(
        cycles=cycles,
        load_s=median(loads),
        worker_load_s=median(worker_loads),
        unload_s=median(unloads),
        baseline_bytes=sizes[0],
        most_bytes=max(sizes),
        last_bytes=sizes[-1],
        both_answered=both,
    )


async def _two_at_once(other: Path) -> bool:
    """Whether two resident models stream side by side, neither waiting for the other's end."""
    extra = f"smollm2 {other} --served-name one --served-name two"
    with tempfile.TemporaryFile() as log:
        async with running(ours("one", None, kv_tokens=None, extra=extra), log) as node:
            second = Endpoint(node.endpoint.host, node.endpoint.port, "two")
            first, then = await asyncio.gather(chat(node.endpoint, ANSWER), chat(second, ANSWER))
    is_whole = first.error is None and then.error is None
    return is_whole and first.delta_s[0] < then.delta_s[-1] and then.delta_s[0] < first.delta_s[-1]


async def _post(endpoint: Endpoint, verb: str) -> float:
    def call() -> float:
        began_s = time.perf_counter()
        connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=60)
        body = json.dumps({"model_id": endpoint.model})
        connection.request("POST", f"/models/{verb}", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{verb} answered {answer.status}: {data.decode()}")
        return time.perf_counter() - began_s

    return await asyncio.to_thread(call)
