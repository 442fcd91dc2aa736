"""Finds the cached token lists that begin like this one.

Token lists are indexed by blocks: the digest of a block covers everything before it and the salt, so one
dictionary finds every list that shares the first n blocks. A digest only nominates: the tokens themselves
are compared before anything is reused, so a collision costs a miss and never a wrong answer.

The first block is cut finer, at `_STARTS`, so that short lists are found too.
"""

from collections.abc import Sequence as Tokens
from itertools import islice

BLOCK = 16
"""A shared prefix of so many tokens is worth carrying from where it lies to where it is needed."""
_STARTS = (4, 8)
"""Where the first block is cut. Who begins with fewer tokens than that is computed again for less than it
costs to remember them."""
LEAST = _STARTS[0]
CANDIDATES = 8
"""Lists compared token by token per look-up; they share all whole blocks, so more would gain little."""

Digests = tuple[int, ...]


def digests(salt: str, tokens: Tokens[int], known: Digests = ()) -> Digests:
    """The digest of each complete block, continuing from those already known."""
    chain = list(known)
    previous = chain[-1] if chain else hash(salt)
    start = covered(len(chain))
    while (end := covered(len(chain) + 1)) <= len(tokens):
        previous = hash((previous, *tokens[start:end]))
        chain.append(previous)
        start = end
    return tuple(chain)


def covered(blocks: int) -> int:
    """How many tokens the first blocks have together."""
    if blocks <= len(_STARTS):
        return _STARTS[blocks - 1] if blocks else 0
    return (blocks - len(_STARTS)) * BLOCK


def whole_blocks(length: int) -> int:
    """How many blocks are complete in so many tokens."""
    if length < BLOCK:
        return sum(start <= length for start in _STARTS)
    return len(_STARTS) + length // BLOCK


def common_blocks(left: Digests, right: Digests) -> int:
    """How many leading blocks two lists share."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def common_length(left: Tokens[int], right: Tokens[int]) -> int:
    """How many leading tokens two lists share."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PrefixIndex:
    """Finds the entries that share the longest run of blocks with a token list."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[int, None]] = {}
        self._digests: dict[int, Digests] = {}

    def put(self, key: int, chain: Digests) -> None:
        """Index an entry, or what it has grown by since."""
        known = self._digests.get(key, ())
        for digest in chain[len(known) :]:
            self._holders.setdefault(digest, {})[key] = None
        self._digests[key] = chain

    def cut(self, key: int, blocks: int) -> None:
        """Forget what lies beyond the first `blocks` of an entry."""
        chain = self._digests.get(key, ())
        for digest in chain[blocks:]:
            holders = self._holders[digest]
            del holders[key]
            if not holders:
                del self._holders[digest]
        self._digests[key] = chain[:blocks]

    def remove(self, key: int) -> None:
        """Forget an entry."""
        self.cut(key, 0)
        self._digests.pop(key, None)

    def chain(self, key: int) -> Digests:
        """What is indexed of an entry."""
        return self._digests.get(key, ())

    def nominate(self, chain: Digests) -> tuple[int, ...]:
        """Entries that share the most leading blocks, most recently indexed first."""
        best: dict[int, None] = {}
        for digest in chain:
            holders = self._holders.get(digest)
            if not holders:
                break
            best = holders
        return tuple(islice(reversed(best), CANDIDATES))
