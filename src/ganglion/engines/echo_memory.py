"""Token lists that an echo has run, so that it can say what a prefix cache would have of another one."""

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Final

MAX_TOKENS: Final = 1 << 20
"""Of all lists together; the oldest make room, as cached KV would."""


class PrefixMemory:
    """Lists by the salt they were run under; no salt finds what belongs to another."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._sorted: dict[str, list[tuple[int, ...]]] = {}
        self._by_age: OrderedDict[tuple[str, tuple[int, ...]], None] = OrderedDict()

    def __len__(self) -> int:
        return self._tokens

    def common(self, salt: str, tokens: tuple[int, ...]) -> int:
        """How many leading tokens some list under this salt shares."""
        # What shares the most with a list is its neighbour in sorted order.
        lists = self._sorted.get(salt, [])
        place = bisect_left(lists, tokens)
        return max((_shared(each, tokens) for each in lists[max(place - 1, 0) : place + 1]), default=0)

    def keep(self, salt: str, tokens: tuple[int, ...]) -> None:
        """Remember a list in place of what it goes on from."""
        if not tokens or len(tokens) > self._max_tokens or self.common(salt, tokens) == len(tokens):
            return
        lists = self._sorted.setdefault(salt, [])
        place = bisect_left(lists, tokens)
        if place and lists[place - 1] == tokens[: len(lists[place - 1])]:
            self._drop(salt, lists[place - 1])
        insort(self._sorted.setdefault(salt, []), tokens)
        self._by_age[salt, tokens] = None
        self._tokens += len(tokens)
        while self._tokens > self._max_tokens:
            self._drop(*next(iter(self._by_age)))

    def clear(self) -> None:
        """Forget everything."""
        self._sorted.clear()
        self._by_age.clear()
        self._tokens = 0

    def _drop(self, salt: str, tokens: tuple[int, ...]) -> None:
        lists = self._sorted[salt]
        del lists[bisect_left(lists, tokens)]
        if not lists:
            del self._sorted[salt]
        del self._by_age[salt, tokens]
        self._tokens -= len(tokens)


def _shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
