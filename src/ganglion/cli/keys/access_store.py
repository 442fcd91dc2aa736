"""The database that the commands about keys work on: the gateway's, or the one of --store."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from ganglion import config as configuration
from ganglion.cli.flags import OUTPUT, OutputFlags, load_config
from ganglion.core.errors import InvalidValue
from ganglion.core.home import home_folder

if TYPE_CHECKING:
    from ganglion.store.access_store import AccessStore

_T = TypeVar("_T")

StoreFlag = Annotated[
    str | None,
    Parameter(
        name="--store",
        help="A SQLite file or postgresql://… (default: store.url, or data/ganglion.db in GANGLION_HOME).",
        group=OUTPUT,
    ),
]


def store_location(store: str | None, config_file: Path | None) -> str | Path:
    """The database that a command means; raises InvalidValue where nothing is kept."""
    from ganglion.store.opening import MEMORY

    given = configuration.settings_from({"store.url": store}, "the flag --store")
    settings = load_config(OutputFlags(config=config_file), given).store
    location = settings.location(home_folder(os.environ))
    if location is None or location == MEMORY:
        raise InvalidValue(
            f"The store is {settings.url!r}: there is nowhere to keep keys.",
            param="store",
            hint="Name a SQLite file or postgresql://… with --store, and the same to the gateway.",
        )
    return location


def with_access_store(
    place: str | Path, work: "Callable[[AccessStore], Awaitable[_T]]", *, may_create: bool = False
) -> _T:
    """Run `work` on the database; a missing file is an error unless `may_create`."""
    from ganglion.store.opening import open_access

    if not may_create and "://" not in str(place) and not Path(place).expanduser().is_file():
        raise InvalidValue(
            f"There is no database at {place}.",
            param="store",
            hint="ganglion keys create NAME makes it with its first key; --store names another place.",
        )

    async def do() -> _T:
        access = await open_access(place)
        try:
            return await work(access)
        finally:
            await access.close()

    return asyncio.run(do())
