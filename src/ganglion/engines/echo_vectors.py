"""An echo's vectors: how often the words of an input occur, and what documents share with a query."""

import math
from array import array
from collections.abc import Sequence
from typing import Final

VECTOR_SIZE: Final = 64


def vector_of(tokens: tuple[int, ...]) -> bytes:
    """A unit vector of an input's words, float32, the same for the same words."""
    counts = array("f", bytes(4 * VECTOR_SIZE))
    for token in tokens:
        counts[token % VECTOR_SIZE] += 1.0
    length = math.sqrt(sum(value * value for value in counts)) or 1.0
    return array("f", [value / length for value in counts]).tobytes()


def shares_of(query: str, documents: Sequence[str]) -> tuple[tuple[float, ...], int]:
    """The share of the query's words that each document holds, and how many words were read."""
    asked = set(query.split())
    texts = [set(document.split()) for document in documents]
    return tuple(len(asked & words) / max(len(asked), 1) for words in texts), len(asked) + sum(
        map(len, texts)
    )
