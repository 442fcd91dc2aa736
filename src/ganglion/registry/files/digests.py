"""A file's digest as hubs name it: SHA-256, or the SHA-1 that git gives to what it stores itself."""

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

_CHUNK_BYTES: Final = 1 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


class Hasher(Protocol):
    """A hash object of hashlib."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def is_digest(text: str) -> bool:
    """Whether a text is a digest in either form, and so also safe as a file's name."""
    return _DIGEST.fullmatch(text) is not None


def kind_of(digest: str) -> str:
    """The name of its kind, for messages."""
    return "SHA-256" if len(digest) == 64 else "git SHA-1"


def digest_like(expected: str, size_bytes: int) -> Hasher:
    """A fresh digest of the kind that `expected` is, for a file of this size."""
    if len(expected) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)


def chunks_of(path: Path, check: Callable[[], None]) -> Iterator[bytes]:
    """A file in pieces; `check` is called before each and may raise."""
    with path.open("rb", buffering=0) as file:
        while True:
            check()
            chunk = file.read(_CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
