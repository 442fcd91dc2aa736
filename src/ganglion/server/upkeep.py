"""What a server does for its store beside serving: tells what a crash cut off, and lets old things go."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ganglion.core.errors import GanglionError
from ganglion.server.state import State, state_of
from ganglion.store.opening import open_store
from ganglion.store.port import Store
from ganglion.store.values import Retention, StoredEvent
from ganglion.wire.responses.stored import interrupted

logger = logging.getLogger("ganglion.server")

SWEEP_S: Final = 600.0
"""How often what is too old is looked for."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Where responses and conversations are kept, and for how long."""

    place: str | Path
    """A SQLite file, `postgresql://…`, or `:memory:`."""
    retention: Retention = Retention()


@asynccontextmanager
async def opened(storage: Storage) -> AsyncGenerator[State, None]:
    """The state around an opened store, swept while it is open."""
    store = await open_store(storage.place)
    try:
        await tell_interrupted(store)
        sweeping = asyncio.create_task(sweep_for_ever(store, storage.retention), name="sweep the store")
        try:
            yield await state_of(store)
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
    finally:
        await store.close()


async def tell_interrupted(store: Store) -> int:
    """End every response that servers who are gone left unfinished; returns how many there were."""
    count = 0
    while abandoned := await store.abandoned():
        for each in abandoned:
            last = -1 if each.last_sequence_number is None else each.last_sequence_number
            body, frame = interrupted(each.response.body, last + 1)
            event = StoredEvent(last + 1, frame.data)
            await store.put(replace(each.response, status="failed", body=body), events=(event,))
            count += 1
    if count:
        logger.warning("%d responses were running when the server stopped; they are failed now", count)
    return count


async def sweep_for_ever(store: Store, retention: Retention) -> None:
    """Let old things go once in a while, until cancelled."""
    while True:
        try:
            swept = await store.sweep(retention)
            if swept.responses or swept.conversations:
                logger.info(
                    "%d responses and %d conversations were let go", swept.responses, swept.conversations
                )
        except GanglionError as error:
            logger.error("the store could not be swept: %s", error.message)
        await asyncio.sleep(SWEEP_S)
