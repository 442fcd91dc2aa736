"""A lower bound on the tokens of a text, computed from its bytes without tokenizing it.

Law: the floor never exceeds what the tokenizer would say. A token that covers a byte is no longer than the
longest piece of the vocabulary that contains this byte; so each byte is at least one part in that many of a
token, and the parts of all bytes are a lower bound. A byte that the tokenizer may drop is no part of any.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

_LENGTHS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 20, 26, 32, 48, 64, 96, 128, 256)
"""To which the longest pieces are rounded up: a text is counted once for each that occurs."""
_SLICE_BYTES: Final = 128 * 2**10
"""Counted in one go, in a millisecond or two; between slices the event loop is others'."""
_LONGEST_CHARACTER: Final = 4
"""Bytes, each of which may be a token."""
_WHITESPACE: Final = b" \t\n\v\f\r"


def longest_pieces(pieces: Iterable[bytes], *, drops_whitespace: bool) -> list[int]:
    """For each byte value the length of the longest piece with it, rounded up; 0 where it may be dropped."""
    longest = [0] * 256
    for piece in pieces:
        size = len(piece)
        for byte in set(piece):
            longest[byte] = max(longest[byte], size)
    if drops_whitespace:
        for byte in _WHITESPACE:
            longest[byte] = 0
    return [next((most for most in _LENGTHS if size <= most), 0) if size else 0 for size in longest]


def may_exceed(text: str, most: int) -> bool:
    """Whether a text of so many characters could have more tokens than `most`."""
    return len(text) * _LONGEST_CHARACTER > most


class TokenFloor:
    """Judges texts by the longest pieces of one vocabulary; without any it knows nothing and allows all."""

    def __init__(self, longest: list[int]) -> None:
        self._groups = [
            (length, bytes(byte for byte, most in enumerate(longest) if most == length))
            for length in sorted(set(longest) - {0})
        ]

    async def above(self, text: str, most: int) -> int | None:
        """More tokens than `most` that the text certainly has, counted no further; None where it may fit."""
        if not may_exceed(text, most) or not self._groups:
            return None
        data = text.encode("utf-8", "surrogatepass")
        if len(data) <= most:
            return None
        found = 0.0
        for start in range(0, len(data), _SLICE_BYTES):
            if start:
                await asyncio.sleep(0)
            found += self._parts(data[start : start + _SLICE_BYTES])
            if found > most + 1:
                return int(found)
        return None

    def _parts(self, data: bytes) -> float:
        return sum((len(data) - len(data.translate(None, group))) / length for length, group in self._groups)
