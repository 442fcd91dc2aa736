"""The protocol of whatever keeps keys, grants and usage for any number of gateways.

Laws: what was granted of a window never exceeds its cap, whoever asks and however many at once. A batch of
usage is counted once, however often it is sent. A write that returned is on disk.

Every method may raise StoreUnavailable, StorageFull, StoreUnusable, or Overloaded when too much waits.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from ganglion.store.access_values import Grant, GrantKind, Grouping, Spent, StoredKey, UsageLine, Window

MAX_KEYS: Final = 100_000
"""Every gateway holds all of them in memory."""


class AccessStore(Protocol):
    """Keys, what was granted to them and what they used."""

    async def add_key(self, key: StoredKey) -> None:
        """Keep a new key; raises InvalidValue where a valid key has its name already."""

    async def keys(self) -> tuple[StoredKey, ...]:
        """Every key that ever was, revoked ones too, oldest first."""

    async def revoke(self, key_id: str) -> bool:
        """End a key; False where there is none of that id, or it was revoked before."""

    async def keys_version(self) -> int:
        """A number that rises with each change of a key: one cheap read."""

    async def grant(
        self, key_id: str, kind: GrantKind, window: Window, *, wanted: int, cap: int, least: int = 1
    ) -> Grant:
        """As much of a cap as is wanted and left; nothing where less than `least` is left."""

    async def give_back(self, key_id: str, kind: GrantKind, window: Window, amount: int) -> None:
        """Let others have what was granted and not used. Never to be repeated after a failure."""

    async def add_usage(self, spender: str, batch: int, rows: Sequence[Spent]) -> None:
        """Add to the sums; a batch of this spender that is not above its last one was counted before."""

    async def usage(
        self, since_s: float, until_s: float, by: Sequence[Grouping] = ()
    ) -> tuple[UsageLine, ...]:
        """Sums over whole hours from `since_s` on and before `until_s`, the dearest and largest first."""

    async def sweep(self) -> None:
        """Forget grants of windows that are long over, and usage of more than a year ago."""

    async def close(self) -> None:
        """Finish what waits, then let go of the database."""
