"""Keys, grants and usage over a database: one lane that writes, one that reads.

Its connections are its own, also where responses lie in the same database: a group of jobs that is committed
together then holds rows of one kind only, in an order in which nobody waits for anybody in a circle.
"""

from collections.abc import Callable, Sequence
from time import time

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
from ganglion.store.backend import Backend, DatabaseConnection
from ganglion.store.database_thread import DatabaseThread
from ganglion.store.response_store import check_names, is_name


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
        await self._writer.run(lambda session: None)

    async def add_key(self, key: StoredKey) -> None:
        check_names(id=key.id, name=key.name, tenant=key.tenant)
        check_names(**{f"models[{number}]": model for number, model in enumerate(key.models or ())})

        def job(session: DatabaseConnection) -> None:
            access_sql.take_turn(session)
            if access_sql.count_keys(session) >= MAX_KEYS:
                raise InvalidValue(f"{MAX_KEYS} keys were made already, and no more can be.")
            if not access_sql.insert_key(session, key):
                raise InvalidValue(
                    f"A key is called {key.name!r} already.",
                    param="name",
                    hint="Revoke that one first, or give this one another name.",
                )

        await self._writer.run(job)

    async def keys(self) -> tuple[StoredKey, ...]:
        return await self._reader.run(access_sql.all_keys)

    async def revoke(self, key_id: str) -> bool:
        if not is_name(key_id):
            return False
        now_s = self._clock()

        def job(session: DatabaseConnection) -> bool:
            access_sql.take_turn(session)
            return access_sql.revoke_key(session, key_id, now_s)

        return await self._writer.run(job)

    async def keys_version(self) -> int:
        return await self._reader.run(access_sql.keys_version)

    async def grant(
        self, key_id: str, kind: GrantKind, window: Window, *, wanted: int, cap: int, least: int = 1
    ) -> Grant:
        def job(session: DatabaseConnection) -> Grant:
            access_sql.take_turn(session)
            return access_sql.grant(session, key_id, kind, window, wanted=wanted, cap=cap, least=least)

        return await self._writer.run(job)

    async def give_back(self, key_id: str, kind: GrantKind, window: Window, amount: int) -> None:
        def job(session: DatabaseConnection) -> None:
            access_sql.take_turn(session)
            access_sql.give_back(session, key_id, kind, window, amount)

        await self._writer.run(job)

    async def add_usage(self, spender: str, batch: int, rows: Sequence[HourlyUsage]) -> None:
        for row in rows:
            check_names(key_id=row.key_id, tenant=row.tenant, model=row.model)
        now_s = self._clock()

        def job(session: DatabaseConnection) -> None:
            access_sql.take_turn(session)
            access_sql.add_usage(session, spender, batch, rows, now_s)

        await self._writer.run(job)

    async def usage(
        self, since_s: float, until_s: float, by: Sequence[Grouping] = ()
    ) -> tuple[UsageLine, ...]:
        return await self._reader.run(lambda session: access_sql.usage(session, since_s, until_s, by))

    async def sweep(self) -> None:
        now_s = self._clock()

        def job(session: DatabaseConnection) -> None:
            access_sql.take_turn(session)
            access_sql.sweep_grants(session, now_s)
            access_sql.sweep_usage(session, now_s)

        await self._writer.run(job)

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()
        self._backend.close()
