"""Which requests may have killed a worker: pure bookkeeping, the clock is handed in.

Law: whoever was in a worker that died is a suspect; a suspect in whose lone company another worker dies is
quarantined; one that completes alone is cleared. Both lists are bounded, and the oldest entry is forgotten.
"""

from array import array
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal

Verdict = Literal["clear", "suspect", "quarantined"]

MOST: Final = 1024
"""Entries of either list; many times what runs at once, so that no suspect is forgotten before its retry."""
SUSPICION_S: Final = 600.0
"""A client that has not come back by then does not retry; and after a death by the system's own hand (out of
memory, an operator) this is how long the innocent keep running one by one."""


@dataclass(frozen=True, slots=True)
class Key:
    """What makes two requests the same: whose they are, and the digest of what they ask."""

    salt: str
    digest: bytes


def key_of_tokens(salt: str, tokens: tuple[int, ...]) -> Key:
    """A prompt's key; how its answer is sampled is no part of it."""
    return Key(salt, blake2b(array("q", tokens).tobytes(), digest_size=16, person=b"tokens").digest())


def key_of_text(text: str) -> Key:
    """The key of a text that is only tokenized, which is nobody's in particular."""
    return Key("", blake2b(text.encode(), digest_size=16, person=b"text").digest())


class Suspects:
    """Judges requests by what happened to the workers they ran in."""

    def __init__(self, most: int = MOST, suspicion_s: float = SUSPICION_S) -> None:
        self._most = most
        self._suspicion_s = suspicion_s
        self._until_s: dict[Key, float] = {}
        self._quarantined: dict[Key, None] = {}

    def judge(self, key: Key, now_s: float) -> Verdict:
        """How a request is to be run."""
        if key in self._quarantined:
            return "quarantined"
        return "suspect" if self._until_s.get(key, now_s) > now_s else "clear"

    def blame(self, key: Key, now_s: float, *, was_alone: bool) -> None:
        """A worker died with this request in it; alone means that it was run so because it was a suspect."""
        self._until_s.pop(key, None)
        if was_alone:
            self._quarantined.pop(key, None)
            self._quarantined[key] = None
            _forget_oldest(self._quarantined, self._most)
        else:
            self._until_s[key] = now_s + self._suspicion_s
            _forget_oldest(self._until_s, self._most)

    def clear(self, key: Key) -> None:
        """The request ran alone to its end."""
        self._until_s.pop(key, None)


def _forget_oldest(entries: dict[Key, float] | dict[Key, None], most: int) -> None:
    while len(entries) > most:
        del entries[next(iter(entries))]
