"""A checkpoint's copy for an engine that does not read it: made once, and found again.

Law: the copy bears the name of what it was made from, so another version of the checkpoint has another copy;
it gets that name only after it was read as the model that it should be.
"""

import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.core.errors import EngineUnavailable, StorageFull
from ganglion.engines.table import ENGINES, EngineName
from ganglion.registry.files import gguf, safetensors
from ganglion.registry.files.model_files import files_of
from ganglion.registry.files.receipts import digest_of_store, locked
from ganglion.registry.hub.download import Report
from ganglion.registry.hub.flights import FlightCancelled

_FOLDER: Final = "converted"
_SUFFIX: Final = ".gguf"
_PARTIAL: Final = ".partial"
_HALF_BITS: Final = 2
"""Bytes of a weight in the copy."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The copy of one checkpoint."""

    checkpoint: Path
    target: Path
    engine: EngineName
    python: Path | None
    cache: Path

    @classmethod
    def of(cls, checkpoint: Path, engine: EngineName, home: Path, python: Path | None) -> "Conversion":
        """Where the copy of a checkpoint is, or will be."""
        cache = home / "cache"
        target = cache / _FOLDER / f"{_name(checkpoint)}-{_fingerprint(files_of(checkpoint))}{_SUFFIX}"
        return cls(checkpoint, target, engine, python, cache)

    @property
    def is_here(self) -> bool:
        """Whether it was made already."""
        return self.target.is_file()

    @property
    def size_bytes(self) -> int:
        """How large the copy becomes, about; raises what is wrong with the checkpoint."""
        facts = safetensors.read_facts(self.checkpoint)
        return max(facts.parameters * _HALF_BITS, facts.size_bytes)

    def run(self, report: Report, is_cancelled: Callable[[], bool]) -> None:
        """Make the copy unless it is here; raises why it cannot be made, or FlightCancelled."""

        def check() -> None:
            if is_cancelled():
                raise FlightCancelled

        if self.is_here:
            return
        with locked(self.target.with_suffix(".lock"), check):
            if not self.is_here:
                self._convert(report, check)

    def _convert(self, report: Report, check: Callable[[], None]) -> None:
        if self.python is None:
            raise EngineUnavailable(
                f"{self.checkpoint} cannot be converted: no Python here has torch and transformers.",
                hint="Set engine.converter_python to one that has them.",
            )
        size_bytes = self.size_bytes
        free = shutil.disk_usage(self.target.parent).free
        if size_bytes > free:
            raise StorageFull(
                f"The copy of {self.checkpoint} needs {size_bytes} bytes in {self.target.parent}, "
                f"and {free} are free.",
                hint="Free space, or set GANGLION_HOME to a folder on another disk.",
                extras={"required_bytes": size_bytes, "free_bytes": free},
            )
        # What is left of one that was killed: its process may still write there, so no name is used twice.
        for left in self.target.parent.glob(f".{self.target.stem}.*{_PARTIAL}"):
            left.unlink(missing_ok=True)
        partial = self.target.with_name(f".{self.target.stem}.{uuid.uuid4().hex[:8]}{_PARTIAL}")
        try:
            ENGINES[self.engine].load_converter()(
                self.checkpoint,
                partial,
                python=self.python,
                cache=self.cache,
                size_bytes=size_bytes,
                report=report,
                check=check,
            )
            gguf.read_facts(partial)
            partial.replace(self.target)
        finally:
            partial.unlink(missing_ok=True)


def _name(checkpoint: Path) -> str:
    """What people call it; in a hub's cache the folder itself is a revision."""
    is_snapshot = checkpoint.parent.name == "snapshots"
    return checkpoint.parent.parent.name.rpartition("--")[2] if is_snapshot else checkpoint.name


def _fingerprint(files: Iterable[Path]) -> str:
    """Equal for equal files: by their digests where a store knows them, else by size and time."""
    told = hashlib.sha256()
    for file in files:
        digest = digest_of_store(file)
        if digest is None:
            status = file.stat()
            digest = f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"
        told.update(f"{file.name}\n{digest}\n".encode())
    return told.hexdigest()[:16]
