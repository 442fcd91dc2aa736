"""The store of keys, grants and usage, for any number of gateways.

Laws: what was granted of a window never exceeds its cap, however many ask for it at once. A batch of
usage is counted once, however often it is sent. A write that returned is on disk.

Every method may raise StoreUnavailable, StorageFull, StoreUnusable, or Overloaded when too much waits.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from time import time
from typing import Final, Literal, TypeVar

from ganglion.core.errors import InvalidValue
from ganglion.store.backend import Backend, DatabaseConnection, Job, Row
from ganglion.store.database_thread import DatabaseThread
from ganglion.store.response_store import check_names, is_name

_T = TypeVar("_T")

_Role = Literal["user", "node", "admin"]
Period = Literal["day", "month", "total"]
GrantKind = Literal["requests", "tokens", "budget"]
Grouping = Literal["key", "tenant", "model", "day"]

_MICROS: Final = 1_000_000
"""Costs are whole numbers of millionths of the operator's unit: sums stay exact."""
HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key as its operator made it; the secret itself is kept nowhere."""

    id: str
    """Public: names the key in lists, logs and metrics."""
    digest: bytes
    """SHA-256 of the secret."""
    name: str
    tenant: str
    created_s: float
    role: _Role = "user"
    models: tuple[str, ...] | None = None
    """The models that it may use; None for all."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget: int | None = None
    """In millionths of a unit, for each period."""
    budget_period: Period = "month"
    expires_s: float | None = None
    priority: int = 0
    revoked_s: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """An interval of wall-clock time for which a cap holds, the same one on every machine."""

    start_s: int
    end_s: int | None
    """None for one that never ends."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The amount granted of a cap, and what is left of it for everyone."""

    amount: int
    left: int


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """The sums over some requests."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: int = 0
    """In millionths of a unit."""


@dataclass(frozen=True, slots=True)
class HourlyUsage:
    """What one key used of one model in one hour, or a part of it."""

    key_id: str
    tenant: str
    model: str
    hour_s: int
    sums: UsageTotals


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One line of a report: what it was grouped by, None for what it was not, and the sums."""

    key_id: str | None
    tenant: str | None
    model: str | None
    day_s: int | None
    sums: UsageTotals


MAX_KEYS: Final = 100_000
"""Every gateway holds all of them in memory."""


# The fields of a StoredKey are the columns of its table, and those of UsageTotals the sums of theirs.
_KEY_FIELDS: Final = tuple(field.name for field in fields(StoredKey))
_KEY_COLUMNS: Final = ", ".join(_KEY_FIELDS)
_SUMS: Final = tuple(field.name for field in fields(UsageTotals))
_ADD_USAGE: Final = f"""
    INSERT INTO spending (key_id, tenant, model, hour_s, {", ".join(_SUMS)})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (key_id, tenant, model, hour_s) DO UPDATE SET
        {", ".join(f"{name} = spending.{name} + excluded.{name}" for name in _SUMS)}
"""  # noqa: S608 (nothing in it is a caller's text)
_GROUPS: Final[dict[Grouping, str]] = {
    "key": "key_id",
    "tenant": "tenant",
    "model": "model",
    "day": "hour_s / 86400 * 86400",
}
_USAGE_KEPT_S: Final = 400 * 86400
"""A year, and some days to compare it with the one before."""
_SPENDERS_KEPT_S: Final = 7 * 86400
"""A gateway that was silent for so long does not send an old batch again."""
_GRANTS_KEPT_S: Final = 3600
"""How long after its end a window is kept, for gateways whose clocks are slow."""


class AccessStore:
    """Keys, their grants and their usage in SQLite or PostgreSQL; made with `open_access`.

    One thread writes, one reads. Its connections are its own, also where responses are in the same database:
    a group of jobs that is committed together then locks rows of one kind only, in an order in which no two
    transactions wait for each other.
    """

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
        """Keep a new key; raises InvalidValue where a valid key has its name already."""
        check_names(id=key.id, name=key.name, tenant=key.tenant)
        check_names(**{f"models[{number}]": model for number, model in enumerate(key.models or ())})
        models = None if key.models is None else json.dumps(key.models)
        values = [models if name == "models" else getattr(key, name) for name in _KEY_FIELDS]
        marks = ", ".join("?" * len(values))

        def job(connection: DatabaseConnection) -> None:
            if connection.rows("SELECT count(*) FROM api_keys")[0][0] >= MAX_KEYS:
                raise InvalidValue(f"{MAX_KEYS} keys were made already, and no more can be.")
            if not connection.rows(
                f"INSERT INTO api_keys ({_KEY_COLUMNS}) VALUES ({marks})"  # noqa: S608 (nothing in it is a caller's text)
                " ON CONFLICT DO NOTHING RETURNING id",
                *values,
            ):
                raise InvalidValue(
                    f"A key is called {key.name!r} already.",
                    param="name",
                    hint="Revoke that one first, or give this one another name.",
                )
            _bump_keys_version(connection)

        await self._write(job)

    async def keys(self) -> tuple[StoredKey, ...]:
        """Every key that ever was, revoked ones too, oldest first."""
        sql = f"SELECT {_KEY_COLUMNS} FROM api_keys ORDER BY created_s, id"  # noqa: S608
        return await self._reader.run(lambda connection: tuple(map(_key, connection.rows(sql))))

    async def revoke(self, key_id: str) -> bool:
        """End a key; False where there is none of that id, or it was revoked before."""
        if not is_name(key_id):
            return False
        now_s = self._clock()
        sql = "UPDATE api_keys SET revoked_s = ? WHERE id = ? AND revoked_s IS NULL RETURNING id"

        def job(connection: DatabaseConnection) -> bool:
            revoked = connection.rows(sql, now_s, key_id)
            if revoked:
                _bump_keys_version(connection)
            return bool(revoked)

        return await self._write(job)

    async def keys_version(self) -> int:
        """A number that rises with each change of a key: one cheap read."""
        sql = "SELECT value FROM access_state WHERE name = 'keys_version'"
        return await self._reader.run(lambda connection: int(connection.rows(sql)[0][0]))

    async def grant(
        self, key_id: str, kind: GrantKind, window: Window, *, requested: int, cap: int, least: int = 1
    ) -> Grant:
        """As much of a cap as is requested and left; nothing where less than `least` is left."""

        def job(connection: DatabaseConnection) -> Grant:
            # Written even where nothing is given: that locks the row, and what is read stays till the commit.
            ((granted,),) = connection.rows(
                "INSERT INTO grants (key_id, kind, start_s, end_s, granted) VALUES (?, ?, ?, ?, 0)"
                " ON CONFLICT (key_id, kind, start_s) DO UPDATE SET granted = grants.granted"
                " RETURNING granted",
                key_id,
                kind,
                window.start_s,
                window.end_s,
            )
            left = max(0, cap - granted)
            amount = min(requested, left)
            if amount < least or amount <= 0:
                return Grant(0, left)
            _add_granted(connection, key_id, kind, window, amount)
            return Grant(amount, left - amount)

        return await self._write(job)

    async def give_back(self, key_id: str, kind: GrantKind, window: Window, amount: int) -> None:
        """Return what was granted and not used. Never to be repeated after a failure."""
        await self._write(lambda connection: _add_granted(connection, key_id, kind, window, -amount))

    async def add_usage(self, spender: str, batch: int, rows: Sequence[HourlyUsage]) -> None:
        """Add to the sums; a batch of this spender that is not above its last one was counted before."""
        for row in rows:
            check_names(key_id=row.key_id, tenant=row.tenant, model=row.model)
        values = [(row.key_id, row.tenant, row.model, row.hour_s, *astuple(row.sums)) for row in rows]
        now_s = self._clock()

        def job(connection: DatabaseConnection) -> None:
            # A commit whose answer was lost may have happened: the number says so when the batch comes again.
            is_new = connection.rows(
                "INSERT INTO spenders (id, batch, told_s) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE"
                " SET batch = excluded.batch, told_s = excluded.told_s WHERE spenders.batch < excluded.batch"
                " RETURNING id",
                spender,
                batch,
                now_s,
            )
            if is_new and values:
                connection.many(_ADD_USAGE, values)

        await self._write(job)

    async def usage(
        self, since_s: float, until_s: float, by: Sequence[Grouping] = ()
    ) -> tuple[UsageLine, ...]:
        """Sums over whole hours from `since_s` on and before `until_s`, the dearest and largest first."""
        columns = [f"{_GROUPS[name] if name in by else 'NULL'} AS group_{name}" for name in _GROUPS]
        totals = [f"CAST(coalesce(sum({name}), 0) AS BIGINT)" for name in _SUMS]
        groups = [f"group_{name}" for name in _GROUPS if name in by]
        order = [*(["group_day"] if "day" in by else []), "9 DESC", "5 DESC", *groups]
        sql = (
            f"SELECT {', '.join((*columns, *totals))} FROM spending WHERE hour_s >= ? AND hour_s < ?"  # noqa: S608
            f"{' GROUP BY ' + ', '.join(groups) if groups else ''} ORDER BY {', '.join(order)}"
        )
        rows = await self._reader.run(lambda connection: connection.rows(sql, int(since_s), int(until_s)))
        return tuple(
            UsageLine(row[0], row[1], row[2], row[3], UsageTotals(*row[4:]))
            for row in rows
            if groups or row[4]
        )

    async def sweep(self) -> None:
        """Remove grants of windows that are long over, usage of more than a year ago, and gateways gone."""
        now_s = self._clock()

        def job(connection: DatabaseConnection) -> None:
            connection.rows("DELETE FROM grants WHERE end_s < ?", int(now_s) - _GRANTS_KEPT_S)
            connection.rows("DELETE FROM spending WHERE hour_s < ?", int(now_s) - _USAGE_KEPT_S)
            connection.rows("DELETE FROM spenders WHERE told_s < ?", now_s - _SPENDERS_KEPT_S)

        await self._write(job)

    async def _write(self, job: Job[_T]) -> _T:
        """Let one transaction at a time change the tables of keys.

        Transactions hold rows of many keys, in the order in which their callers came: without this two
        gateways on one PostgreSQL could each wait for a row that the other has locked.
        """

        def in_turn(connection: DatabaseConnection) -> _T:
            connection.rows("UPDATE access_state SET value = value WHERE name = 'turn'")
            return job(connection)

        return await self._writer.run(in_turn)

    async def close(self) -> None:
        """Finish what waits, then close the database."""
        await self._reader.close()
        await self._writer.close()
        self._backend.close()


def _add_granted(
    connection: DatabaseConnection, key_id: str, kind: GrantKind, window: Window, amount: int
) -> None:
    connection.rows(
        "UPDATE grants SET granted = granted + ? WHERE key_id = ? AND kind = ? AND start_s = ?",
        amount,
        key_id,
        kind,
        window.start_s,
    )


def _bump_keys_version(connection: DatabaseConnection) -> None:
    connection.rows("UPDATE access_state SET value = value + 1 WHERE name = 'keys_version'")


def _key(row: Row) -> StoredKey:
    key_id, digest, name, tenant, created_s, role, models, *rest = row
    allowed = None if models is None else tuple(json.loads(models))
    return StoredKey(key_id, bytes(digest), name, tenant, created_s, role, allowed, *rest)
