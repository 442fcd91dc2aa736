"""Which store a URL or path means."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import time
from typing import Final

from ganglion.core.errors import StoreUnusable
from ganglion.store.access_database import DatabaseAccess
from ganglion.store.backend import Backend
from ganglion.store.database import READERS, DatabaseStore
from ganglion.store.sqlite import SqliteFile, SqliteMemory

MEMORY: Final = ":memory:"
FILE_NAME: Final = "ganglion.db"
_POSTGRES: Final = ("postgresql://", "postgres://")


async def open_store(place: str | Path, *, clock: Callable[[], float] = time) -> DatabaseStore:
    """Open `postgresql://…`, a SQLite file by its path, or `:memory:`; raises what is wrong with it."""
    store = store_at(place, clock=clock)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


def store_at(place: str | Path, *, clock: Callable[[], float] = time) -> DatabaseStore:
    """The store that a place means, which each of its calls tries to open until one has."""
    return DatabaseStore(_backend(place), readers=0 if place == MEMORY else READERS, clock=clock)


async def open_access(place: str | Path, *, clock: Callable[[], float] = time) -> DatabaseAccess:
    """Open what is kept of keys, over connections of its own; `place` as for `open_store`."""
    access = DatabaseAccess(_backend(place), has_reader=place != MEMORY, clock=clock)
    try:
        await access.open()
    except BaseException:
        await access.close()
        raise
    return access


def _backend(place: str | Path) -> Backend:
    if place == MEMORY:
        return SqliteMemory()
    if isinstance(place, str) and place.startswith(_POSTGRES):
        # Named as text: nobody who keeps a file needs the driver.
        backend: Backend = import_module("ganglion.store.postgres").Postgres(place)
        return backend
    if isinstance(place, str) and "://" in place:
        raise StoreUnusable(
            f"There is no store for addresses that begin with {place.partition('://')[0]}://.",
            hint="Give the path of a file, postgresql://…, :memory:, or off.",
        )
    return SqliteFile(Path(place).expanduser())
