"""Every token list that has KV, found by how it begins.

Law: an entry's `tokens` are what its slot or blob holds; keys are given once and never again.
"""

from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from ganglion.scheduler.pictures import Pictures, outside
from ganglion.scheduler.prefix import (
    BLOCK,
    LEAST,
    Digests,
    PrefixIndex,
    common_length,
    digests,
    whole_blocks,
)
from ganglion.scheduler.slots import BlobId, Slot

SequenceId = int


@dataclass(slots=True, eq=False)
class KvEntry:
    """A token list with KV; `owner` is the running sequence that extends it, None when it is only cached."""

    key: int
    salt: str
    tokens: list[int]
    slot: Slot | None = None
    blob: BlobId | None = None
    owner: SequenceId | None = None
    used: int = 0

    @property
    def source(self) -> Slot | BlobId:
        """Where its KV is."""
        source = self.slot if self.slot is not None else self.blob
        assert source is not None
        return source


class PrefixCatalogue:
    """The entries and the index over them; without `can_trim` an entry is reused whole or not at all."""

    def __init__(self, *, can_trim: bool) -> None:
        self._can_trim = can_trim
        self._index = PrefixIndex()
        self._entries: dict[int, KvEntry] = {}
        self._next_key = 0
        self._clock = 0

    def add(self, salt: str, tokens: list[int], slot: Slot | None = None) -> KvEntry:
        """A new entry, which is found once it is indexed."""
        entry = KvEntry(self._next_key, salt, tokens, slot)
        self._next_key += 1
        self._entries[entry.key] = entry
        return entry

    def remove(self, key: int) -> None:
        """Forget an entry."""
        self._index.remove(key)
        del self._entries[key]

    def touch(self, entry: KvEntry) -> None:
        """The entry was used just now."""
        self._clock += 1
        entry.used = self._clock

    def index(self, entry: KvEntry, chain: Digests | None = None) -> None:
        """Let an entry be found by all its whole blocks; `chain`, if given, begins with their digests."""
        if chain is None:
            chain = digests(entry.salt, entry.tokens, self._index.chain(entry.key))
        self._index.put(entry.key, chain[: whole_blocks(len(entry.tokens))])

    def cut(self, entry: KvEntry, length: int) -> None:
        """The entry holds its first `length` tokens only."""
        del entry.tokens[length:]
        self._index.cut(entry.key, whole_blocks(length))

    def match(
        self,
        salt: str,
        tokens: Tokens[int],
        chain: Digests,
        limit: int,
        *,
        is_usable: Callable[[KvEntry], bool] | None = None,
        pictures: Pictures = (),
    ) -> tuple[KvEntry, int] | None:
        """The entry to reuse and how much of it, which is `limit` at most: the rest is run for its logits.

        It ends in none of the `pictures`.
        """
        best: tuple[KvEntry, int] | None = None
        for key in self._index.nominate(chain):
            entry = self._entries[key]
            if is_usable is not None and not is_usable(entry):
                continue
            length = outside(pictures, min(common_length(tokens, entry.tokens), limit))
            if entry.salt != salt or not _is_worth_reusing(entry, length):
                continue
            if not self._can_trim and (length != len(entry.tokens) or entry.owner is not None):
                continue
            # Of equal matches take an idle one, and of these the shortest, which costs least to carry.
            worth = length, entry.owner is None, -len(entry.tokens)
            if best is None or worth > (best[1], best[0].owner is None, -len(best[0].tokens)):
                best = entry, length
        return best

    def is_covered(self, entry: KvEntry, *, by_longer: bool = False) -> bool:
        """Whether another entry holds all of this one, and more if it must, and can be cut to it."""
        for key in self._index.nominate(self._index.chain(entry.key)):
            other = self._entries[key]
            if (
                other is not entry
                and len(other.tokens) >= len(entry.tokens) + by_longer
                and other.salt == entry.salt
                and other.tokens[: len(entry.tokens)] == entry.tokens
            ):
                return self._can_trim
        return False

    def hottest(self) -> list[KvEntry]:
        """The entries, most recently used first."""
        return sorted(self._entries.values(), key=last_used, reverse=True)

    def oldest_parked(self) -> KvEntry:
        """Of the entries in blobs the one that was not used for longest."""
        return min((entry for entry in self._entries.values() if entry.blob is not None), key=last_used)


def _is_worth_reusing(entry: KvEntry, length: int) -> bool:
    """Whether so many tokens of an entry are sooner reused than computed.

    Fewer than a block are only where they lie already: taken over with their slot, they cost nothing, while
    a copy of them passes through a state of all that the entry holds. Else every chat would copy the first
    words of its template from a stranger's.
    """
    if length >= BLOCK:
        return True
    is_taken_over = entry.owner is None and entry.slot is not None and 2 * length >= len(entry.tokens)
    return length >= LEAST and is_taken_over


def last_used(entry: KvEntry) -> int:
    """When an entry was last used, in ticks of its catalogue."""
    return entry.used
