"""An operator who has a server in this process read its configuration again."""

import asyncio
import os
import signal
from collections.abc import Callable

from support.waiting import until


async def hang_up(reads: Callable[[], int]) -> None:
    """Send SIGHUP, and wait until the configuration was read once more and put into force, or refused."""
    before = reads()
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: reads() != before, 2)
    await asyncio.sleep(0.01)
