"""The state that a server keeps from one request to the next: store, seal, background tasks, quota."""

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, field

from ganglion.server.quota import NoQuota, QuotaMeter
from ganglion.store.database import Store
from ganglion.wire.seal import HmacSeal

_logger = logging.getLogger("ganglion.server")


class _BackgroundTasks:
    """The tasks that no request awaits."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run work in a task of its own; at shutdown it is cancelled, and has time to end well."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    async def close(self) -> None:
        """Cancel the tasks that still run, and wait until they have ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _logger.error("%s failed", task.get_name(), exc_info=task.exception())


_SEAL_BYTES = 32


def _fresh_seal() -> HmacSeal:
    return HmacSeal(secrets.token_bytes(_SEAL_BYTES))


@dataclass(frozen=True, slots=True)
class AppState:
    """The store, None for a server that keeps nothing; the seal of sealed items; tasks that outlive their
    request; and the meter of quotas."""

    store: Store | None = None
    seal: HmacSeal = field(default_factory=_fresh_seal)
    background: _BackgroundTasks = field(default_factory=_BackgroundTasks)
    meter: QuotaMeter = field(default_factory=NoQuota)
