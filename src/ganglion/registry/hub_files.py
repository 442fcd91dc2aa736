"""The files that a name means at a hub."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a model at a hub."""

    path: str
    """In the repository."""
    size_bytes: int
    digest: str | None
    """SHA-256, or git's SHA-1 for a file that is not in LFS; None for a cached file nothing says it of."""
    is_cached: bool

    @property
    def sha256(self) -> str | None:
        return self.digest if self.digest and len(self.digest) == 64 else None


@dataclass(frozen=True, slots=True)
class HubFiles:
    """The files that a name means, at one commit: what `fetch` would have to be here."""

    repo: str
    revision: str
    commit: str
    quant: str
    files: tuple[HubFile, ...]
    """Of a split model all parts, in order."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def is_cached(self) -> bool:
        return all(file.is_cached for file in self.files)
