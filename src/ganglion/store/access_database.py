"""Keys, grants and usage over a database: one lane that writes, one that reads.

Its connections are its own, also where responses lie in the same database: a group of jobs that is committed
together then holds rows of one kind only, in an order in which nobody waits for anybody in a circle.
"""

from collections.abc import Callable, Sequence
from time import time

from ganglion.core.errors import InvalidValue
from ganglion.store import grants, keys, spending
from ganglion.store.access import MAX_KEYS
from ganglion.store.access_values import Grant, GrantKind, Grouping, Spent, StoredKey, UsageLine, Window
from ganglion.store.lane import Lane
from ganglion.store.names import check_names, is_name
from ganglion.store.session import Backend, Session


class DatabaseAccess:
    """An AccessStore in SQLite or PostgreSQL; made with `open_access`."""

    def __init__(
        self, backend: Backend, *, has_reader: bool = True, clock: Callable[[], float] = time
    ) -> None:
        """Without a reader the writer reads too: for a database that has but one connection."""
        self._backend = backend
        self._clock = clock
        self._writer = Lane(backend.connect, is_writer=True)
        self._reader = Lane(backend.connect, is_writer=False) if has_reader else self._writer

    async def open(self) -> None:
        """Connect and bring the schema up to date; raises what is wrong with the database."""
        await self._writer.run(lambda session: None)

    async def add_key(self, key: StoredKey) -> None:
        check_names(id=key.id, name=key.name, tenant=key.tenant)
        check_names(**{f"models[{number}]": model for number, model in enumerate(key.models or ())})

        def job(session: Session) -> None:
            keys.take_turn(session)
            if keys.count(session) >= MAX_KEYS:
                raise InvalidValue(f"{MAX_KEYS} keys were made already, and no more can be.")
            if not keys.add(session, key):
                raise InvalidValue(
                    f"A key is called {key.name!r} already.",
                    param="name",
                    hint="Revoke that one first, or give this one another name.",
                )

        await self._writer.run(job)

    async def keys(self) -> tuple[StoredKey, ...]:
        return await self._reader.run(keys.every)

    async def revoke(self, key_id: str) -> bool:
        if not is_name(key_id):
            return False
        now_s = self._clock()

        def job(session: Session) -> bool:
            keys.take_turn(session)
            return keys.revoke(session, key_id, now_s)

        return await self._writer.run(job)

    async def keys_version(self) -> int:
        return await self._reader.run(keys.version)

    async def grant(
        self, key_id: str, kind: GrantKind, window: Window, *, wanted: int, cap: int, least: int = 1
    ) -> Grant:
        def job(session: Session) -> Grant:
            keys.take_turn(session)
            return grants.grant(session, key_id, kind, window, wanted=wanted, cap=cap, least=least)

        return await self._writer.run(job)

    async def give_back(self, key_id: str, kind: GrantKind, window: Window, amount: int) -> None:
        def job(session: Session) -> None:
            keys.take_turn(session)
            grants.give_back(session, key_id, kind, window, amount)

        await self._writer.run(job)

    async def add_usage(self, spender: str, batch: int, rows: Sequence[Spent]) -> None:
        for row in rows:
            check_names(key_id=row.key_id, tenant=row.tenant, model=row.model)
        now_s = self._clock()

        def job(session: Session) -> None:
            keys.take_turn(session)
            spending.add(session, spender, batch, rows, now_s)

        await self._writer.run(job)

    async def usage(
        self, since_s: float, until_s: float, by: Sequence[Grouping] = ()
    ) -> tuple[UsageLine, ...]:
        return await self._reader.run(lambda session: spending.usage(session, since_s, until_s, by))

    async def sweep(self) -> None:
        now_s = self._clock()

        def job(session: Session) -> None:
            keys.take_turn(session)
            grants.sweep(session, now_s)
            spending.sweep(session, now_s)

        await self._writer.run(job)

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()
        self._backend.close()
