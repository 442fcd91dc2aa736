"""The opening of stores by URL or path."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import time
from typing import Final, TypeVar

from ganglion.core.errors import StoreUnusable
from ganglion.store.access_store import AccessStore
from ganglion.store.backend import Backend
from ganglion.store.database import READERS, Store
from ganglion.store.sqlite import SqliteFile, SqliteMemory

MEMORY: Final = ":memory:"
_S = TypeVar("_S", Store, AccessStore)
_POSTGRES: Final = ("postgresql://", "postgres://")


async def open_store(location: str | Path, *, clock: Callable[[], float] = time) -> Store:
    """Open `postgresql://…`, a SQLite file by its path, or `:memory:`; raises what is wrong with it."""
    return await _opened(store_at(location, clock=clock))


def store_at(location: str | Path, *, clock: Callable[[], float] = time) -> Store:
    """The store at a location, which each of its calls tries to open until one has."""
    return Store(_backend(location), readers=0 if location == MEMORY else READERS, clock=clock)


async def open_access(location: str | Path, *, clock: Callable[[], float] = time) -> AccessStore:
    """Open the store of keys, over connections of its own; `location` as for `open_store`."""
    return await _opened(AccessStore(_backend(location), has_reader=location != MEMORY, clock=clock))


async def _opened(store: _S) -> _S:
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


def _backend(location: str | Path) -> Backend:
    if location == MEMORY:
        return SqliteMemory()
    if isinstance(location, str) and location.startswith(_POSTGRES):
        # Named as text: a store in a file does not need the driver.
        backend: Backend = import_module("ganglion.store.postgres").Postgres(location)
        return backend
    if isinstance(location, str) and "://" in location:
        raise StoreUnusable(
            f"There is no store for addresses that begin with {location.partition('://')[0]}://.",
            hint="Give the path of a file, postgresql://…, :memory:, or off.",
        )
    return SqliteFile(Path(location).expanduser())
