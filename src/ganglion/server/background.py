"""Work that outlives the request which began it: somebody awaits it, at the latest when the server leaves."""

import asyncio
import logging
from collections.abc import Coroutine

logger = logging.getLogger("ganglion.server")


class Background:
    """The tasks that no request awaits."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None], name: str) -> None:
        """Let work go on by itself; when the server leaves it is cancelled, and has time to end well."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    async def close(self) -> None:
        """Cancel what still goes on, and wait until it has ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s failed", task.get_name(), exc_info=task.exception())
