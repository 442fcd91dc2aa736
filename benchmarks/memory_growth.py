"""The peak memory of a server while a block runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.footprint import pss_bytes

INTERVAL_S = 0.1
"""Walking the pages of a process takes milliseconds, which the server waits for: do not sample more often."""


class MemoryGauge:
    """The memory of a process and its descendants: at the start, and at most."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.first_bytes = self.peak_bytes = pss_bytes(pid)[0]

    @property
    def grown_bytes(self) -> int:
        """The peak above the start."""
        return self.peak_bytes - self.first_bytes

    def sample(self) -> None:
        """Take one more sample."""
        self.peak_bytes = max(self.peak_bytes, pss_bytes(self._pid)[0])


@asynccontextmanager
async def measured_growth(pid: int) -> AsyncIterator[MemoryGauge]:
    """Sample a server's memory until the block ends."""
    gauge = MemoryGauge(pid)

    async def sample_often() -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await asyncio.to_thread(gauge.sample)

    sampler = asyncio.create_task(sample_often())
    try:
        yield gauge
    finally:
        sampler.cancel()
        gauge.sample()
