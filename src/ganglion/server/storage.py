"""The store of a running server: opened, told what a crash cut off, kept swept, closed."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ganglion.server.state import State, state_of
from ganglion.store.opening import open_store
from ganglion.store.upkeep import Ending, interrupt_unfinished, keep_swept
from ganglion.store.values import Abandoned, Retention, StoredEvent
from ganglion.wire.responses.stored import interrupted

logger = logging.getLogger("ganglion.server")


@dataclass(frozen=True, slots=True)
class Storage:
    """Where responses and conversations are kept, and for how long."""

    place: str | Path
    """A SQLite file, `postgresql://…`, or `:memory:`."""
    retention: Retention = Retention()


@asynccontextmanager
async def opened(storage: Storage) -> AsyncGenerator[State, None]:
    """The state around an opened store, for as long as the server runs."""
    store = await open_store(storage.place)
    try:
        count = await interrupt_unfinished(store, _ending)
        if count:
            logger.warning("%d responses were running when a server stopped; they are failed now", count)
        sweeping = asyncio.create_task(keep_swept(store, storage.retention), name="sweep the store")
        try:
            yield await state_of(store)
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
    finally:
        await store.close()


def _ending(abandoned: Abandoned) -> Ending:
    last = -1 if abandoned.last_sequence_number is None else abandoned.last_sequence_number
    body, frame = interrupted(abandoned.response.body, last + 1)
    return Ending(body, (StoredEvent(last + 1, frame.data),))
