"""How loaded models make room for others: what is free, which one goes, and how it goes.

Law: a model that is pinned is never evicted, and one in use is closed only when its last request is finished.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ganglion.core.errors import GanglionError, InsufficientMemory, InsufficientVideoMemory
from ganglion.registry.loading.resident import Resident
from ganglion.registry.loading.resident_table import ResidentTable

_logger = logging.getLogger("ganglion.registry")

WATCH_S: Final = 1.0
"""How often idle models are looked at."""


def available_bytes(loaded: Sequence[Resident], free_bytes: int, limit_bytes: int | None) -> int:
    """What is free, less what loaded models were promised and have not touched yet."""
    states = [state for resident in loaded for state in resident.states()]
    room = free_bytes - sum(max(state.memory_mb - state.resident_mb, 0) << 20 for state in states)
    if limit_bytes is not None:
        room = min(room, limit_bytes - sum(state.memory_mb << 20 for state in states))
    return max(room, 0)


def evictable(loaded: Sequence[Resident], newcomer: Resident) -> list[Resident]:
    """Those that may go at all: not pinned, and not more urgent."""
    return [
        each
        for each in loaded
        if not each.is_pinned and each.candidate.priority >= newcomer.candidate.priority
    ]


def victim(candidates: Sequence[Resident]) -> Resident | None:
    """Who goes: an idle one before a busy one, then the least urgent, then the one left alone for longest."""
    return min(
        candidates,
        key=lambda each: (not each.is_idle, -each.candidate.priority, each.idle_since_s),
        default=None,
    )


def cannot_fit(candidates: Sequence[Resident], error: InsufficientMemory) -> bool:
    """Whether it would not fit if all of them went; of video memory only the engine knows."""
    if isinstance(error, InsufficientVideoMemory):
        return False
    states = [state for each in candidates for state in each.states()]
    return error.required_mb > error.free_mb + sum(state.memory_mb for state in states)


async def evict(resident: Resident) -> None:
    """Return once a loaded model finished what it does and is closed."""
    if resident.unloading is None and resident.status == "loaded":
        _logger.info("unloading %s, %d requests in flight", resident.id, resident.claims)
        resident.set_status("draining")
        resident.unloading = asyncio.create_task(_unload_when_idle(resident), name=f"unload {resident.id}")
    if resident.unloading is not None:
        # Waited for and not awaited: whoever gives up meanwhile does not leave it half gone.
        await asyncio.wait((resident.unloading,))


async def _unload_when_idle(resident: Resident) -> None:
    try:
        while not resident.is_idle:
            await resident.wait_changed()
        await unload_now(resident)
    finally:
        resident.unloading = None


async def unload_now(resident: Resident) -> None:
    """Close its engine now, whoever uses it."""
    if resident.engine is not None:
        await close_engine(resident)
    if resident.status != "failed":
        resident.set_status("unloaded")


async def close_engine(resident: Resident) -> None:
    """Close its engine and leave its status to the caller."""
    engine, resident.engine = resident.engine, None
    if engine is not None:
        await engine.close()


async def unload_idle(table: ResidentTable) -> None:
    """Unload models that had no request for as long as they are kept."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(WATCH_S)
        for resident in table.loaded():
            keep_s = resident.candidate.keep_alive_s
            is_due = keep_s is not None and loop.time() - resident.idle_since_s >= keep_s
            if is_due and resident.is_idle and not resident.is_pinned and resident.status == "loaded":
                with suppress(GanglionError):
                    await evict(resident)
