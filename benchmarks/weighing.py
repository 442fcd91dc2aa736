"""The most memory that a server takes while something runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.footprint import pss_bytes

INTERVAL_S = 0.1
"""Walking the pages of a process takes milliseconds, which the server then waits for: not more often."""


class Scale:
    """Memory of a process and its descendants: at first, and at most."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.first_bytes = self.peak_bytes = pss_bytes(pid)[0]

    @property
    def grown_bytes(self) -> int:
        """How much more it was at most than at first."""
        return self.peak_bytes - self.first_bytes

    def look(self) -> None:
        """Weigh once more."""
        self.peak_bytes = max(self.peak_bytes, pss_bytes(self._pid)[0])


@asynccontextmanager
async def weighed(pid: int) -> AsyncIterator[Scale]:
    """Weigh a server until the block is left."""
    scale = Scale(pid)

    async def watch() -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await asyncio.to_thread(scale.look)

    watching = asyncio.create_task(watch())
    try:
        yield scale
    finally:
        watching.cancel()
        scale.look()
