"""The store of a running server: opened, swept and closed, and what a crash cut off is marked as failed.

Law: answers that nobody keeps need no store. A disk that is full and a database that is away do not keep a
server from starting: what is to be kept is refused by name until there is room again.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.core.errors import GanglionError, StorageFull, StoreUnavailable, StoreUnusable
from ganglion.server.state import AppState
from ganglion.store.database import Store
from ganglion.store.opening import store_at
from ganglion.store.response_store import AbandonedResponse, Retention, StoredEvent
from ganglion.store.upkeep import InterruptedResponse, interrupt_unfinished, keep_swept
from ganglion.wire.responses.stored import interrupted, last_frames

_logger = logging.getLogger("ganglion.server")


REOPEN_S: Final = 15.0
"""How often a store that could not be opened is tried again; each request that needs it tries, too."""
SEAL: Final = "seal"


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """Where responses and conversations are kept, and for how long."""

    place: str | Path
    """A SQLite file, `postgresql://…`, or `:memory:`."""
    retention: Retention = Retention()
    is_asked_for: bool = True
    """Whether the operator named the place: the server then does not start where it cannot be used."""


@asynccontextmanager
async def open_store(storage: StoreTarget) -> AsyncGenerator[AppState, None]:
    """The state around a store, for as long as the server runs; raises StoreUnusable."""
    store = store_at(storage.place)
    try:
        state = AppState(store)
        try:
            await _open(store, state)
        except (StorageFull, StoreUnavailable, StoreUnusable) as error:
            if isinstance(error, StoreUnusable) and storage.is_asked_for:
                raise
            _logger.error("the store cannot be opened, and requests that need it are refused: %s", error)
            state.background.start(_open_later(store, state), "open the store")
        state.background.start(keep_swept(store, storage.retention), "sweep the store")
        try:
            yield state
        finally:
            await state.background.close()
    finally:
        await store.close()


async def _open(store: Store, state: AppState) -> None:
    """Take the seal's key from the store, and fail the responses that a crash cut off."""
    state.seal.adopt(await store.secret(SEAL))
    await _fail_unfinished(store)


async def _open_later(store: Store, state: AppState) -> None:
    while True:
        await asyncio.sleep(REOPEN_S)
        try:
            await _open(store, state)
        except GanglionError:
            continue  # the sweeper says it every minute
        _logger.info("the store is open now")
        return


async def _fail_unfinished(store: Store) -> None:
    try:
        count = await interrupt_unfinished(store, _ending)
    except GanglionError as error:
        _logger.error("unfinished responses of an earlier run could not be marked as failed: %s", error)
        return
    if count:
        _logger.warning(
            "%d responses were running when a server stopped; they are marked as failed now", count
        )


def _ending(abandoned: AbandonedResponse) -> InterruptedResponse:
    body, last = interrupted(abandoned.response.body), abandoned.last_sequence_number
    if last is None:
        return InterruptedResponse(body)
    frames = last_frames(body, last + 1)
    return InterruptedResponse(
        body, tuple(StoredEvent(last + 1 + place, frame.data) for place, frame in enumerate(frames))
    )
