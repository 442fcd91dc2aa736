"""What the store asks of a database: connections that run SQL, and who else is connected.

SQL is written once, in what SQLite (3.35 or newer) and PostgreSQL have in common; `?` stands for a value.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

UNAVAILABLE = "The store cannot be used just now."
UNUSABLE = "The store cannot be used before whoever runs the server has looked at it."
FULL = "The disk of the store is full."
"""What clients are told of a store that fails: where it lies, and of what it is made, is not theirs."""

T = TypeVar("T")
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
        """Forget the transaction, if there is one; raises when the connection is lost."""

    def ping(self) -> None:
        """Raise StoreUnavailable when the connection is lost."""

    def shrink(self) -> None:
        """Give room that removals left back to the disk, a piece of it at a time."""

    def close(self) -> None:
        """Let go of the connection."""


Job = Callable[[DatabaseConnection], T]


class Backend(Protocol):
    """A database that sessions are opened to."""

    owner: str
    """This store among all that are open on the database."""

    def connect(self) -> DatabaseConnection:
        """A new session on the current schema; raises StoreUnavailable or StoreUnusable."""

    def is_alive(self, session: DatabaseConnection, owner: str) -> bool:
        """Whether the store of that owner is still open somewhere."""

    def close(self) -> None:
        """Be gone, as `is_alive` tells it to others."""
