"""What is kept of keys: the keys themselves, what was granted to them, and what they used."""

from dataclasses import dataclass
from typing import Final, Literal

Role = Literal["user", "node", "admin"]
Period = Literal["day", "month", "total"]
GrantKind = Literal["requests", "tokens", "budget"]
Grouping = Literal["key", "tenant", "model", "day"]

MICROS: Final = 1_000_000
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
    role: Role = "user"
    models: tuple[str, ...] | None = None
    """What it may ask for; None for everything."""
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
    """A stretch of wall-clock time for which a cap holds; every machine that asks means the same one."""

    start_s: int
    end_s: int | None
    """None for one that never ends."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What was given of a cap, and what is left of it for anybody."""

    amount: int
    left: int


@dataclass(frozen=True, slots=True)
class Sums:
    """What some requests came to."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: int = 0
    """In millionths of a unit."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What one key used of one model in one hour, or a part of it."""

    key_id: str
    tenant: str
    model: str
    hour_s: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One line of a report: what it was grouped by, None for what it was not, and the sums."""

    key_id: str | None
    tenant: str | None
    model: str | None
    day_s: int | None
    sums: Sums
