"""An event loop on a thread of its own, so that an engine lives on while a terminal waits."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines elsewhere; Ctrl-C in the caller cancels the one it waits for, and nothing else."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine; a KeyboardInterrupt is raised after its cancellation has been carried out."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            self._settle()
            raise

    def _settle(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancelled_tasks_end(), self._loop).result()


async def _cancelled_tasks_end() -> None:
    current = asyncio.current_task()
    cancelled = [task for task in asyncio.all_tasks() if task is not current and task.cancelling()]
    await asyncio.gather(*cancelled, return_exceptions=True)
