"""A lock file: the packages of an environment, each in one version and with the hashes of its files."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.core.errors import InvalidValue

_BATCH: Final = 16
"""Packages that are installed at once: what is lost when an installation is killed."""
_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)")


@dataclass(frozen=True, slots=True)
class Pin:
    """One package of a lock file; `text` is as the file has it, with its hashes."""

    name: str
    version: str
    text: str


@dataclass(frozen=True, slots=True)
class LockFile:
    """All packages of an environment; equal digests are equal environments."""

    digest: str
    pins: tuple[Pin, ...]

    def batches(self, first: Sequence[str]) -> tuple[tuple[Pin, ...], ...]:
        """The packages in the order in which they are installed; those in `first` are the first batch."""
        ahead = tuple(pin for pin in self.pins if pin.name in first)
        rest = [pin for pin in self.pins if pin.name not in first]
        parts = [tuple(rest[at : at + _BATCH]) for at in range(0, len(rest), _BATCH)]
        return (ahead, *parts) if ahead else tuple(parts)

    def version_of(self, names: Sequence[str]) -> str | None:
        """The version of the first of these packages that it has."""
        return next((pin.version for pin in self.pins if pin.name in names), None)


def read_lock_file(path: Path) -> LockFile:
    """The packages of a file as `uv pip compile --generate-hashes` writes it; raises InvalidValue."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"{path} cannot be read: {error}.", param="requirements") from error
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    blocks = re.split(r"\n(?=\S)", "\n".join(lines).strip())
    pins = tuple(_pin(block.strip(), path) for block in blocks if block.strip())
    if not pins:
        raise InvalidValue(f"{path} names no package.", param="requirements")
    return LockFile(hashlib.sha256("\n".join(pin.text for pin in pins).encode()).hexdigest(), pins)


def _pin(block: str, path: Path) -> Pin:
    found = _PINNED.match(block)
    if found is None or "--hash=" not in block:
        raise InvalidValue(
            f"{path} is no lock file: {block.splitlines()[0][:80]!r} has no exact version with a hash.",
            param="requirements",
            hint="Write one with: uv pip compile --generate-hashes",
        )
    return Pin(re.sub(r"[-_.]+", "-", found[1]).lower(), found[2], block)
