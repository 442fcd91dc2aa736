"""The functions that differ between blocking calls and an event loop: running calls together, and files.

`_async` uses the functions with the prefix `async_`; scripts/unasync.py takes the prefix off for `_sync`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")


async def async_run_together(calls: Sequence[Callable[[], Coroutine[Any, Any, _T]]]) -> tuple[_T, ...]:
    """The results in order; where one call raises or the caller is cancelled, the others are cancelled."""
    tasks = [asyncio.ensure_future(call()) for call in calls]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_together(calls: Sequence[Callable[[], _T]]) -> tuple[_T, ...]:
    """The results in order, each call in a thread; where one raises, so does this, once all have ended."""
    with ThreadPoolExecutor(max(len(calls), 1), thread_name_prefix="ganglion-branch") as threads:
        running = [threads.submit(call) for call in calls]
    return tuple(each.result() for each in running)


async def async_read_file(path: str | Path) -> bytes:
    """A file's bytes, read in a thread."""
    return await asyncio.to_thread(read_file, path)


def read_file(path: str | Path) -> bytes:
    """A file's bytes."""
    return Path(path).read_bytes()


async def async_write_file(path: str | Path, data: bytes) -> None:
    """Write a file in a thread."""
    await asyncio.to_thread(write_file, path, data)


def write_file(path: str | Path, data: bytes) -> None:
    """Write a file."""
    Path(path).write_bytes(data)
