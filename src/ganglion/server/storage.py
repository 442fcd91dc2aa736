"""The store of a running server: opened, told what a crash cut off, kept swept, closed."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ganglion.core.errors import GanglionError
from ganglion.server.state import State, state_of
from ganglion.store.opening import open_store
from ganglion.store.port import Store
from ganglion.store.upkeep import Ending, interrupt_unfinished, keep_swept
from ganglion.store.values import Abandoned, Retention, StoredEvent
from ganglion.wire.responses.stored import interrupted, last_frames

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
        state = await state_of(store)
        await _heal(store)
        state.background.start(keep_swept(store, storage.retention), "sweep the store")
        try:
            yield state
        finally:
            await state.background.close()
    finally:
        await store.close()


async def _heal(store: Store) -> None:
    try:
        count = await interrupt_unfinished(store, _ending)
    except GanglionError as error:
        # Answers that nobody keeps need no store: a full disk does not keep the server from starting.
        logger.error("what a server left unfinished could not be ended: %s", error.message)
        return
    if count:
        logger.warning("%d responses were running when a server stopped; they are failed now", count)


def _ending(abandoned: Abandoned) -> Ending:
    body, last = interrupted(abandoned.response.body), abandoned.last_sequence_number
    if last is None:
        return Ending(body)
    frames = last_frames(body, last + 1)
    return Ending(
        body, tuple(StoredEvent(last + 1 + place, frame.data) for place, frame in enumerate(frames))
    )
