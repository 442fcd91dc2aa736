"""Waiting for what has no event: a count, a status, a file."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable


async def until(
    holds: Callable[[], object | Awaitable[object]], within_s: float = 10.0, *, pause_s: float = 0.005
) -> None:
    """Return once it holds; raise TimeoutError if it does not within that time."""
    async with asyncio.timeout(within_s):
        while True:
            found = holds()
            if await found if isawaitable(found) else found:
                return
            await asyncio.sleep(pause_s)


def wait_until(holds: Callable[[], object], within_s: float = 10.0, *, pause_s: float = 0.01) -> None:
    """The same without an event loop."""
    ends_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > ends_s:
            raise TimeoutError("did not happen in time")
        time.sleep(pause_s)


async def settled(turns: int = 5) -> None:
    """Let tasks that can run do so, before looking at what they left undone."""
    for _ in range(turns):
        await asyncio.sleep(0)
