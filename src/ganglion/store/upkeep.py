"""The upkeep of a store: ending the responses that a crash cut off, and removing old ones."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ganglion.core.errors import GanglionError
from ganglion.store.database import Store
from ganglion.store.response_store import AbandonedResponse, Retention, StoredEvent, SweepResult

_SWEEP_S: Final = 60.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InterruptedResponse:
    """The wire's ending of a response that was cut off: its body, and the events that its stream lacks."""

    body: bytes
    events: tuple[StoredEvent, ...] = ()


async def interrupt_unfinished(store: Store, end: Callable[[AbandonedResponse], InterruptedResponse]) -> int:
    """Mark every unfinished response of a server that is gone as failed; how many there were."""
    count = 0
    while abandoned := await store.abandoned():
        # Together, so that they are committed together: a server may have left thousands.
        count += sum(await asyncio.gather(*(_interrupt(store, found, end(found)) for found in abandoned)))
    return count


async def _interrupt(store: Store, found: AbandonedResponse, ending: InterruptedResponse) -> bool:
    failed = replace(found.response, status="failed", body=ending.body)
    return await store.replace(failed, events=ending.events)


async def keep_swept(store: Store, retention: Retention, *, every_s: float = _SWEEP_S) -> None:
    """Sweep periodically, until cancelled; a sweep that fails is left to the next one."""
    while True:
        try:
            swept = await store.sweep(retention)
            if swept != SweepResult():
                _logger.info(
                    "store: removed %d responses and %d conversations, %d bytes",
                    swept.responses,
                    swept.conversations,
                    swept.size_bytes,
                )
        except GanglionError as error:
            _logger.warning("store: the sweep failed: %s", error)
        await asyncio.sleep(every_s)
