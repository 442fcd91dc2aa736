"""A growing list of tokens that forks for nothing. Pure.

Law: a list is the first `length` tokens of a trunk that only ever grows. Forks share the trunk; the first to
grow from its end keeps it, and whoever must differ copies its own part then.
"""

from array import array
from collections.abc import Iterable

ITEM = "i"


class TokenList:
    """Four bytes a token, shared with its forks until they differ."""

    __slots__ = ("_length", "_trunk")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._trunk = array(ITEM, tokens)
        self._length = len(self._trunk)

    def __len__(self) -> int:
        return self._length

    def fork(self, length: int) -> "TokenList":
        """Another list with the first `length` tokens of this one."""
        assert 0 <= length <= self._length
        forked = TokenList()
        forked._trunk = self._trunk
        forked._length = length
        return forked

    def extend(self, tokens: Iterable[int]) -> None:
        """Grow; no fork sees it."""
        if self._length < len(self._trunk):
            self._trunk = self._trunk[: self._length]
        self._trunk.extend(tokens)
        self._length = len(self._trunk)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        assert 0 <= length <= self._length
        self._length = length

    def first(self, length: int) -> tuple[int, ...]:
        """The first `length` tokens."""
        return tuple(self._trunk[: min(length, self._length)])

    def part(self, start: int, end: int) -> tuple[int, ...]:
        """The tokens of a half-open range that lies inside."""
        assert 0 <= start <= end <= self._length
        return tuple(self._trunk[start:end])

    def tobytes(self) -> bytes:
        """All tokens, four bytes each in the machine's order."""
        return self._trunk[: self._length].tobytes()
