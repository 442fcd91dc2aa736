"""The protocol of a store of keys, grants and usage, for any number of gateways.

Laws: what was granted of a window never exceeds its cap, however many ask for it at once. A batch of
usage is counted once, however often it is sent. A write that returned is on disk.

Every method may raise StoreUnavailable, StorageFull, StoreUnusable, or Overloaded when too much waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

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


class AccessStore(Protocol):
    """Keys, their grants and their usage."""

    async def add_key(self, key: StoredKey) -> None:
        """Keep a new key; raises InvalidValue where a valid key has its name already."""

    async def keys(self) -> tuple[StoredKey, ...]:
        """Every key that ever was, revoked ones too, oldest first."""

    async def revoke(self, key_id: str) -> bool:
        """End a key; False where there is none of that id, or it was revoked before."""

    async def keys_version(self) -> int:
        """A number that rises with each change of a key: one cheap read."""

    async def grant(
        self, key_id: str, kind: GrantKind, window: Window, *, requested: int, cap: int, least: int = 1
    ) -> Grant:
        """As much of a cap as is requested and left; nothing where less than `least` is left."""

    async def give_back(self, key_id: str, kind: GrantKind, window: Window, amount: int) -> None:
        """Return what was granted and not used. Never to be repeated after a failure."""

    async def add_usage(self, spender: str, batch: int, rows: Sequence[HourlyUsage]) -> None:
        """Add to the sums; a batch of this spender that is not above its last one was counted before."""

    async def usage(
        self, since_s: float, until_s: float, by: Sequence[Grouping] = ()
    ) -> tuple[UsageLine, ...]:
        """Sums over whole hours from `since_s` on and before `until_s`, the dearest and largest first."""

    async def sweep(self) -> None:
        """Remove grants of windows that are long over, and usage of more than a year ago."""

    async def close(self) -> None:
        """Finish what waits, then close the database."""
