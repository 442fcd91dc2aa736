"""The PostgreSQL backend: a schema of our own in a database that many servers share; imported when chosen."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, ParamSpec, TypeVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

from ganglion.core.errors import GanglionError, StorageFull, StoreUnavailable, StoreUnusable
from ganglion.store.backend import FULL, UNAVAILABLE, UNUSABLE, DatabaseConnection, Row
from ganglion.store.schema import VERSION, steps_from

try:
    import psycopg
    from psycopg import errors
except ImportError as error:
    raise StoreUnusable(
        "PostgreSQL needs the package psycopg, which is not installed.",
        hint="pip install 'ganglion[postgres]'",
    ) from error

_P = ParamSpec("_P")
_T = TypeVar("_T")

_SETTINGS: Final = (
    "SET search_path TO ganglion",
    "SET statement_timeout TO '30s'",
    "SET lock_timeout TO '10s'",
    # A role or database may have switched it off, and then an answered write could be lost.
    "SET synchronous_commit TO on",
)
_NETWORK: Final = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "application_name": "ganglion"}
"""A server that vanished is noticed within seconds, not when TCP gives up after minutes."""
_MIGRATION_LOCK: Final = 0x67616E67


def _with_store_errors(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """The call, with the driver's errors turned into those of the tree."""

    def wrapped(*args: _P.args, **keywords: _P.kwargs) -> _T:
        try:
            return call(*args, **keywords)
        except psycopg.Error as error:
            raise _store_error(error) from error

    return wrapped


class _PostgresConnection:
    """One connection, outside a transaction unless one was begun."""

    def __init__(self, driver: psycopg.Connection[Row]) -> None:
        self._driver = driver

    @_with_store_errors
    def rows(self, sql: str, *values: object) -> list[Row]:
        cursor = self._driver.execute(_with_placeholders(sql), values, binary=True)
        return cursor.fetchall() if cursor.description else []

    @_with_store_errors
    def many(self, sql: str, rows: Sequence[Row]) -> None:
        with self._driver.cursor() as cursor:
            cursor.executemany(_with_placeholders(sql), rows)

    def begin(self) -> None:
        self.rows("BEGIN")

    def commit(self) -> None:
        self.rows("COMMIT")

    def roll_back(self) -> None:
        if self._driver.closed:
            raise StoreUnavailable("The connection to PostgreSQL was lost.")
        if self._driver.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self.rows("ROLLBACK")

    def ping(self) -> None:
        self.rows("SELECT 1")

    def shrink(self) -> None:
        """Autovacuum does it."""

    @_with_store_errors
    def close(self) -> None:
        self._driver.close()


class Postgres:
    """A database server; each connection of a store holds an advisory lock, which shows that it is open."""

    def __init__(self, url: str) -> None:
        self.owner = uuid4().hex
        self._url = url
        self._location = _without_password(url)

    def connect(self) -> DatabaseConnection:
        try:
            driver = psycopg.connect(self._url, autocommit=True, **cast("dict[str, Any]", _NETWORK))
        except psycopg.ProgrammingError:
            # The driver's own message may quote the password.
            raise StoreUnusable(
                UNUSABLE,
                detail=f"The URL of PostgreSQL at {self._location} is not valid.",
                hint="postgresql://user:password@host:5432/database",
            ) from None
        except psycopg.Error as error:
            raise StoreUnavailable(
                UNAVAILABLE, detail=f"PostgreSQL at {self._location} could not be reached: {_line(error)}."
            ) from error
        connection = _PostgresConnection(driver)
        try:
            for setting in _SETTINGS:
                connection.rows(setting)
            _migrate(connection, self._location)
            connection.rows("SELECT pg_advisory_lock_shared(?)", _lock_of(self.owner))
        except GanglionError:
            with suppress(GanglionError):
                connection.close()
            raise
        return connection

    def is_alive(self, connection: DatabaseConnection, owner: str) -> bool:
        # For the length of one statement, which is a transaction of its own here.
        ((is_free,),) = connection.rows("SELECT pg_try_advisory_xact_lock(?)", _lock_of(owner))
        return not is_free

    def close(self) -> None:
        """The locks ended with the connections."""


def _migrate(connection: DatabaseConnection, location: str) -> None:
    if _version(connection) == VERSION:
        return
    connection.begin()
    try:
        connection.rows("SELECT pg_advisory_xact_lock(?)", _MIGRATION_LOCK)
        connection.rows("CREATE SCHEMA IF NOT EXISTS ganglion")
        connection.rows("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
        for statement in steps_from(_version(connection), location):
            connection.rows(statement)
        connection.rows("DELETE FROM schema_version")
        connection.rows("INSERT INTO schema_version VALUES (?)", VERSION)
        connection.commit()
    finally:
        connection.roll_back()


def _version(connection: DatabaseConnection) -> int:
    if connection.rows("SELECT to_regclass('ganglion.schema_version') IS NULL")[0][0]:
        return 0
    rows = connection.rows("SELECT version FROM schema_version")
    return int(rows[0][0]) if rows else 0


@lru_cache(maxsize=256)
def _with_placeholders(sql: str) -> bytes:
    """SQL with the driver's placeholders; none of our statements has a literal `?` or `%`."""
    return sql.replace("?", "%b").encode()


def _lock_of(owner: str) -> int:
    return int.from_bytes(bytes.fromhex(owner)[:8], signed=True)


def _store_error(error: psycopg.Error) -> GanglionError:
    match error:
        case errors.DiskFull():
            return StorageFull(
                FULL,
                detail="The disk of PostgreSQL is full.",
                hint="Make room, or keep less with store.max_mb and store.max_age_days.",
            )
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return StoreUnusable(
                UNUSABLE, detail=f"PostgreSQL found damage: {_line(error)}.", hint="See the server's log."
            )
        case errors.InsufficientPrivilege() | errors.UndefinedTable() | errors.UndefinedColumn():
            return StoreUnusable(
                UNUSABLE,
                detail=f"PostgreSQL refused: {_line(error)}.",
                hint="The role needs CREATE on the database, or a schema `ganglion` of its own.",
            )
        case _:
            return StoreUnavailable(UNAVAILABLE, detail=f"PostgreSQL could not be used: {_line(error)}.")


def _line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return (parts.netloc.rpartition("@")[2] or "localhost") + parts.path
