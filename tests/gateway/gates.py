"""Gatekeepers over real stores, keys for them, and a store that can be made to fail."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from ganglion.core.errors import StoreUnavailable
from ganglion.store.access_store import AccessStore, HourlyUsage, StoredKey

NOON_S = 1_800_014_400.0
"""The first second of a minute, an hour and the noon of a day."""


class Clock:
    """A wall clock that stands still until it is moved."""

    def __init__(self, now_s: float = NOON_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Flaky(AccessStore):
    """An AccessStore whose database can be taken away."""

    def __init__(self, inner: AccessStore) -> None:
        self.__dict__ = inner.__dict__
        self.is_away = False
        self.loses_answers = False
        """Usage is written, and the answer lost on the way."""
        self.grants = 0

    async def add_usage(self, spender: str, batch: int, rows: Sequence[HourlyUsage]) -> None:
        self._check()
        await super().add_usage(spender, batch, rows)
        if self.loses_answers:
            raise StoreUnavailable("The connection was lost.")

    async def grant(self, *arguments: Any, **keywords: Any) -> Any:
        self._check()
        self.grants += 1
        return await super().grant(*arguments, **keywords)

    async def keys_version(self) -> int:
        self._check()
        return await super().keys_version()

    def _check(self) -> None:
        if self.is_away:
            raise StoreUnavailable("The database is away.")


def secret_of(name: str) -> bytes:
    """What a client with this key sends."""
    return f"gk-{name}".encode()


def key(name: str = "app", **fields: Any) -> StoredKey:
    """A key of which the secret is known."""
    made = StoredKey(f"key_{name}", sha256(secret_of(name)).digest(), name, f"tenant-{name}", NOON_S)
    return replace(made, **fields)
