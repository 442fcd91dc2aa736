"""The protocol of a database: connections that run SQL, and which other stores are open on it.

SQL is written once, in what SQLite (3.35 or newer) and PostgreSQL have in common; `?` stands for a value.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

UNAVAILABLE = "The store is unavailable at the moment."
UNUSABLE = "The store cannot be used until the operator has looked at it."
FULL = "The disk of the store is full."
"""The messages of a failing store to clients, who do not learn where it is or which database it uses."""

_T = TypeVar("_T")
Row = tuple[Any, ...]


class DatabaseConnection(Protocol):
    """One connection, used by one thread at a time; its errors are those of the tree."""

    def rows(self, sql: str, *values: object) -> list[Row]:
        """Run one statement; what it returns."""

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        """Run one statement for each row of values."""

    def begin(self) -> None:
        """Start a transaction that writes."""

    def commit(self) -> None:
        """Make it durable."""

    def roll_back(self) -> None:
        """Roll back the transaction, if there is one; raises when the connection is lost."""

    def ping(self) -> None:
        """Raise StoreUnavailable when the connection is lost."""

    def shrink(self) -> None:
        """Return space that removals freed to the disk, a piece at a time."""

    def close(self) -> None:
        """Close the connection."""


Job = Callable[[DatabaseConnection], _T]


class Backend(Protocol):
    """A database."""

    owner: str
    """The id of this store among all that are open on the database."""

    def connect(self) -> DatabaseConnection:
        """A new connection, with the schema up to date; raises StoreUnavailable or StoreUnusable."""

    def is_alive(self, connection: DatabaseConnection, owner: str) -> bool:
        """Whether the store of that owner is still open somewhere."""

    def close(self) -> None:
        """Close it: `is_alive` is False from now on."""
