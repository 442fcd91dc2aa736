"""What this process counted for each key since it began, for `/metrics`.

Law: the number of names is bounded, whatever keys there are: further ones are counted together.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ganglion.core.events import Usage

MAX_NAMES: Final = 1000
OTHERS: Final = "(others)"


@dataclass(slots=True)
class KeyCount:
    """One key's counts; they only rise."""

    tenant: str
    key: str
    """Its name, or its id where nobody named it."""
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: int = 0
    """In millionths of the operator's unit."""
    refusals: dict[str, int] = field(default_factory=dict)
    """By the code of the error."""


class Tally:
    """The counts of all keys."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        self._name_of = name_of
        self._by_key: dict[str, KeyCount] = {}

    def used(self, key_id: str, tenant: str, usage: Usage, cost: int) -> None:
        """One request that ran."""
        count = self._by_key.get(key_id) or self._new(key_id, tenant)
        count.requests += 1
        count.prompt_tokens += usage.prompt_tokens
        count.completion_tokens += usage.completion_tokens
        count.cached_tokens += usage.cached_tokens
        count.cost += cost

    def refused(self, key_id: str, tenant: str, code: str) -> None:
        """One request that did not."""
        count = self._by_key.get(key_id) or self._new(key_id, tenant)
        count.refusals[code] = count.refusals.get(code, 0) + 1

    def counts(self) -> tuple[KeyCount, ...]:
        """All there are."""
        return tuple(self._by_key.values())

    def _new(self, key_id: str, tenant: str) -> KeyCount:
        if len(self._by_key) >= MAX_NAMES:
            return self._by_key.setdefault(OTHERS, KeyCount(OTHERS, OTHERS))
        return self._by_key.setdefault(key_id, KeyCount(tenant, self._name_of(key_id)))
