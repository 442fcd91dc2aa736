"""The access store (keys, grants, usage) over a database: one thread that writes, one that reads.

Its connections are its own, also where responses are in the same database: a group of jobs that is committed
together then locks rows of one kind only, in an order in which no two transactions wait for each other.
"""

from collections.abc import Callable, Sequence
from time import time
from typing import TypeVar

from ganglion.core.errors import InvalidValue
from ganglion.store import access_sql
from ganglion.store.access_store import (
    MAX_KEYS,
    Grant,
    GrantKind,
    Grouping,
    HourlyUsage,
    StoredKey,
    UsageLine,
    Window,
)
from ganglion.store.backend import Backend, DatabaseConnection, Job
from ganglion.store.database_thread import DatabaseThread
from ganglion.store.response_store import check_names, is_name

_T = TypeVar("_T")


class DatabaseAccess:
    """An AccessStore in SQLite or PostgreSQL; made with `open_access`."""

    def __init__(
        self, backend: Backend, *, has_reader: bool = True, clock: Callable[[], float] = time
    ) -> None:
        """Without a reader the writer reads too: for a database that has but one connection."""
        self._backend = backend
        self._clock = clock
        self._writer = DatabaseThread(backend.connect, is_writer=True)
        self._reader = DatabaseThread(backend.connect, is_writer=False) if has_reader else self._writer

    async def open(self) -> None:
        """Connect and bring the schema up to date; raises what is wrong with the database."""
        await self._writer.run(lambda connection: None)

    async def add_key(self, key: StoredKey) -> None:
        check_names(id=key.id, name=key.name, tenant=key.tenant)
        check_names(**{f"models[{number}]": model for number, model in enumerate(key.models or ())})

        def job(connection: DatabaseConnection) -> None:
            if access_sql.count_keys(connection) >= MAX_KEYS:
                raise InvalidValue(f"{MAX_KEYS} keys were made already, and no more can be.")
            if not access_sql.insert_key(connection, key):
                raise InvalidValue(
                    f"A key is called {key.name!r} already.",
                    param="name",
                    hint="Revoke that one first, or give this one another name.",
                )

        await self._write(job)

    async def keys(self) -> tuple[StoredKey, ...]:
        return await self._reader.run(access_sql.all_keys)

    async def revoke(self, key_id: str) -> bool:
        if not is_name(key_id):
            return False
        now_s = self._clock()

        return await self._write(lambda connection: access_sql.revoke_key(connection, key_id, now_s))

    async def keys_version(self) -> int:
        return await self._reader.run(access_sql.keys_version)

    async def grant(
        self, key_id: str, kind: GrantKind, window: Window, *, requested: int, cap: int, least: int = 1
    ) -> Grant:
        return await self._write(
            lambda connection: access_sql.grant(
                connection, key_id, kind, window, requested=requested, cap=cap, least=least
            )
        )

    async def give_back(self, key_id: str, kind: GrantKind, window: Window, amount: int) -> None:
        await self._write(lambda connection: access_sql.give_back(connection, key_id, kind, window, amount))

    async def add_usage(self, spender: str, batch: int, rows: Sequence[HourlyUsage]) -> None:
        for row in rows:
            check_names(key_id=row.key_id, tenant=row.tenant, model=row.model)
        now_s = self._clock()
        await self._write(lambda connection: access_sql.add_usage(connection, spender, batch, rows, now_s))

    async def usage(
        self, since_s: float, until_s: float, by: Sequence[Grouping] = ()
    ) -> tuple[UsageLine, ...]:
        return await self._reader.run(lambda connection: access_sql.usage(connection, since_s, until_s, by))

    async def sweep(self) -> None:
        now_s = self._clock()

        def job(connection: DatabaseConnection) -> None:
            access_sql.sweep_grants(connection, now_s)
            access_sql.sweep_usage(connection, now_s)

        await self._write(job)

    async def _write(self, job: Job[_T]) -> _T:
        def in_turn(connection: DatabaseConnection) -> _T:
            access_sql.take_turn(connection)
            return job(connection)

        return await self._writer.run(in_turn)

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()
        self._backend.close()
