"""The SQLite backend: one file that only its owner reads, with a write-ahead log synced at every commit."""

import errno
import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Final
from uuid import uuid4

from filelock import FileLock

from ganglion.core.errors import GanglionError, StorageFull, StoreUnavailable, StoreUnusable
from ganglion.store.backend import FULL, UNAVAILABLE, UNUSABLE, DatabaseConnection, Row
from ganglion.store.schema import VERSION, steps_from

BUSY_S: Final = 5.0
"""How long to wait for another process that writes to the file."""
APPLICATION: Final = 0x47414E47
"""Written into the file, so that another program's database is never taken for ours."""
_SHRINK_PAGES: Final = 1024
"""Returned to the disk at a time; a quarter of the file stays free, since the data will grow again."""
_OLDEST_LIBRARY: Final = (3, 35)
_WAL_BYTES: Final = 16 * 2**20
"""What is left of the log after a burst; while it lasts the log may be longer."""
_CACHE_KIB: Final = 512
"""Of each connection's own; the system holds the file's pages, too. A larger one fills for as long as the
file grows, and cannot be told from a leak."""
_STALE_S: Final = 60.0
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_HANDLES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_PRAGMAS: Final = (
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    f"PRAGMA journal_size_limit = {_WAL_BYTES}",
    f"PRAGMA cache_size = -{_CACHE_KIB}",
    # What a transaction removes would be written to the log before it is known to be free: on a full disk no
    # sweep could make room.
    "PRAGMA cache_spill = OFF",
    "PRAGMA trusted_schema = OFF",
)


class _SqliteConnection:
    """One connection to a file, or the only one to a database in memory."""

    def __init__(self, driver: sqlite3.Connection, location: str) -> None:
        self._driver = driver
        self._location = location

    def rows(self, sql: str, *values: object) -> list[Row]:
        try:
            found: list[Row] = self._driver.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise _store_error(error, self._location) from error
        return found

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        try:
            self._driver.executemany(sql, rows)
        except sqlite3.Error as error:
            raise _store_error(error, self._location) from error

    def begin(self) -> None:
        self.rows("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.rows("COMMIT")

    def roll_back(self) -> None:
        # After some errors SQLite has rolled back by itself.
        if self._driver.in_transaction:
            self.rows("ROLLBACK")

    def ping(self) -> None:
        """A file is always there."""

    def shrink(self) -> None:
        ((free_pages,),) = self.rows("PRAGMA freelist_count")
        ((pages,),) = self.rows("PRAGMA page_count")
        # One page a statement: Python's sqlite3 takes only the first step of this pragma.
        for _ in range(min(free_pages - pages // 4, _SHRINK_PAGES)):
            self.rows("PRAGMA incremental_vacuum(1)")

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._driver.close()


class SqliteFile:
    """A database file, with a folder of locks beside it that show which stores are open on it."""

    def __init__(self, path: Path) -> None:
        self.owner = uuid4().hex
        self._path = path
        self._owners = path.with_name(f"{path.name}-owners")
        self._lock: FileLock | None = None

    def connect(self) -> DatabaseConnection:
        try:
            self._prepare()
            driver = sqlite3.connect(
                self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
        except OSError as error:
            raise _open_error(self._path, error) from error
        except sqlite3.Error as error:
            raise _store_error(error, str(self._path)) from error
        connection = _SqliteConnection(driver, str(self._path))
        return _set_up(connection, str(self._path), is_file=True)

    def is_alive(self, connection: DatabaseConnection, owner: str) -> bool:
        return self._is_locked(owner)

    def close(self) -> None:
        if self._lock is not None:
            with suppress(OSError):
                (self._owners / self.owner).unlink(missing_ok=True)
            self._lock.release()

    def _prepare(self) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_LIBRARY:
            raise StoreUnusable(
                f"SQLite {sqlite3.sqlite_version} is too old, 3.35 is needed.",
                hint="Use a newer Python, or PostgreSQL with store.url.",
            )
        _make_folder(self._path.parent)
        _make_file(self._path)
        if self._lock is None:
            self._owners.mkdir(mode=0o700, exist_ok=True)
            lock = FileLock(self._owners / self.owner, timeout=0, thread_local=False)
            lock.acquire()
            self._lock = lock
            self._remove_stale_locks()

    def _remove_stale_locks(self) -> None:
        """Remove the locks of killed stores; a young file may be about to be locked."""
        for path in self._owners.iterdir():
            with suppress(OSError):
                if path.stat().st_mtime < time() - _STALE_S:
                    self._is_locked(path.name)

    def _is_locked(self, owner: str) -> bool:
        path = self._owners / owner
        if not path.exists():
            return False
        try:
            with FileLock(path, timeout=0):
                path.unlink(missing_ok=True)
        except OSError:  # also filelock's Timeout
            return True
        return False


class SqliteMemory:
    """A database in memory, gone when it is closed."""

    def __init__(self) -> None:
        self.owner = uuid4().hex

    def connect(self) -> DatabaseConnection:
        driver = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        return _set_up(_SqliteConnection(driver, "memory"), "memory", is_file=False)

    def is_alive(self, connection: DatabaseConnection, owner: str) -> bool:
        return False

    def close(self) -> None:
        """It ended with its one connection."""


def _make_folder(folder: Path) -> None:
    """Make a folder that only its owner enters, and sync its name to the disk."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_file(path: Path) -> None:
    """Make a file that only its owner reads, unless it is there."""
    # One that is there is never opened here: closing it would take away every lock that this process has on
    # it, its other connections' too. Another process that then closed its own would find itself the last one,
    # and remove the log under them: they would see nothing new any more, and what they wrote would be lost.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


def _set_up(connection: _SqliteConnection, location: str, *, is_file: bool) -> DatabaseConnection:
    try:
        if _is_new(connection, location):
            # Not for a file that has tables: it would take the writer's lock, also of another process.
            connection.rows("PRAGMA auto_vacuum = INCREMENTAL")
        for pragma in _PRAGMAS:
            connection.rows(pragma)
        if is_file and connection.rows("PRAGMA journal_mode = WAL") != [("wal",)]:
            raise StoreUnusable(
                UNUSABLE,
                detail=f"{location} is on a file system where SQLite cannot keep a write-ahead log.",
                hint="Put the data folder on a local disk.",
            )
        if connection.rows("PRAGMA user_version") != [(VERSION,)]:
            _migrate(connection, location)
    except GanglionError:
        connection.close()
        raise
    return connection


def _is_new(connection: DatabaseConnection, location: str) -> bool:
    """Whether the file is empty; raises for one that another program or a newer version wrote."""
    ((application,),) = connection.rows("PRAGMA application_id")
    ((tables,),) = connection.rows("SELECT count(*) FROM sqlite_master")
    ((version,),) = connection.rows("PRAGMA user_version")
    if tables and application != APPLICATION:
        raise StoreUnusable(
            UNUSABLE,
            detail=f"{location} is a database of another program.",
            hint="Set another location with store.url.",
        )
    steps_from(version, location)
    return not tables


def _migrate(connection: DatabaseConnection, location: str) -> None:
    connection.begin()
    try:
        # Read again inside the transaction: another process may have migrated in the meantime.
        ((version,),) = connection.rows("PRAGMA user_version")
        for statement in steps_from(version, location):
            connection.rows(statement)
        connection.rows(f"PRAGMA application_id = {APPLICATION}")
        connection.rows(f"PRAGMA user_version = {VERSION}")
        connection.commit()
    finally:
        connection.roll_back()


def _store_error(error: sqlite3.Error, location: str) -> GanglionError:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return _full(location)
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return _full(location)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StoreUnusable(
                UNUSABLE,
                detail=f"{location} is damaged or no SQLite database: {error}.",
                hint="Restore a backup, or move the file away and a new one is created. It was not changed.",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreUnusable(
                UNUSABLE,
                detail=f"{location} cannot be written: {error}.",
                hint="Let this user write to the file and its folder.",
            )
        case sqlite3.SQLITE_BUSY:
            locked = f"{location} was locked by another process for more than {BUSY_S:g} s."
            return StoreUnavailable(UNAVAILABLE, detail=locked)
        case _:
            return StoreUnavailable(UNAVAILABLE, detail=f"{location} could not be used: {error}.")


def _full(location: str) -> StorageFull:
    return StorageFull(
        FULL,
        detail=f"The disk of {location} is full.",
        hint="Make room, or keep less with store.max_mb and store.max_age_days.",
    )


def _open_error(path: Path, error: OSError) -> GanglionError:
    if error.errno in _NO_ROOM:
        return _full(str(path))
    if error.errno in _NO_HANDLES:
        return StoreUnavailable(UNAVAILABLE, detail=f"{path} could not be opened: {error.strerror}.")
    return StoreUnusable(
        UNUSABLE,
        detail=f"{path} could not be opened: {error.strerror or error}.",
        hint="Set another location with store.url.",
    )
