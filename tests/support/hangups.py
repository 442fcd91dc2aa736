"""An operator who has a server in this process read its configuration again."""

import asyncio
import os
import signal
from collections.abc import Callable


async def hang_up(reads: Callable[[], int]) -> None:
    """Send SIGHUP, and wait until the configuration was read once more and put into force, or refused."""
    before = reads()
    os.kill(os.getpid(), signal.SIGHUP)
    async with asyncio.timeout(2):
        while reads() == before:  # noqa: ASYNC110 - the signal has no event to wait for
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
