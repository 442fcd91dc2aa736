"""An index of what was read from model files, so that a listing opens only new ones.

Law: a file is believed to be what it was while its path, size, modification time and inode are. The index is
a cache: one that is damaged, foreign or cannot be written costs time and nothing else.
"""

import os
import stat
import zlib
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ganglion.core.errors import LoadFailed, ModelNotFound
from ganglion.core.model import ModelFacts
from ganglion.registry.files.gguf import GgufFileFacts, read_file
from ganglion.registry.files.safetensors import read_facts
from ganglion.registry.files.whole_files import write_atomically
from ganglion.registry.stores.walk import FoundFile

FILE_NAME: Final = "models.index"
# An entry takes about 250 bytes; people have dozens of files, fleets' shared disks thousands.
ENTRIES_LIMIT: Final = 50_000
_SIZE_LIMIT: Final = 64 << 20
_ERROR_LIMIT: Final = 1000
_MAGIC: Final = b"ganglion models 2\n"
_CHECK_BYTES: Final = 4


class FileSummary(Struct, frozen=True, array_like=True, gc=False):
    """What a listing needs of one file."""

    is_model: bool
    """Whether it is a model or part of one, rather than something beside a model."""
    architecture: str | None = None
    quantisation: str = ""
    parameters: int = 0
    context_length: int = 0
    capabilities: tuple[str, ...] = ()
    number: int = 1
    """Which part of how many it says it is."""
    count: int = 1
    error: str | None = None


class _Entry(Struct, frozen=True, array_like=True, gc=False):
    size_bytes: int
    modified_ns: int
    inode: int
    summary: FileSummary


_decode = msgspec.msgpack.Decoder(dict[str, _Entry]).decode


class FileIndex:
    """Summaries by path, in memory and in one file; for one thread at a time and any number of processes."""

    def __init__(self, folder: Path) -> None:
        """Read what is kept in this folder; it need not exist."""
        self._path = folder / FILE_NAME
        self._entries = _load(self._path)
        self._used: dict[str, _Entry] = {}
        self._is_changed = False

    def summary(self, path: str, status: os.stat_result) -> FileSummary | None:
        """What the file says, read only if it is not known; None when it is gone."""
        return self._known(path, (status.st_size, status.st_mtime_ns, status.st_ino), read_file)

    def checkpoint(self, folder: str, files: Iterable[FoundFile]) -> FileSummary | None:
        """What the checkpoint of these files says; it is known while each of them is what it was."""
        stamps = [
            (file.name, file.status.st_size, file.status.st_mtime_ns, file.status.st_ino) for file in files
        ]
        size_bytes, newest_ns = sum(stamp[1] for stamp in stamps), max(stamp[2] for stamp in stamps)
        return self._known(folder, (size_bytes, newest_ns, zlib.crc32(repr(stamps).encode())), read_facts)

    def _known(
        self, path: str, stamp: tuple[int, int, int], read: Callable[[Path], ModelFacts | GgufFileFacts]
    ) -> FileSummary | None:
        entry = self._entries.get(path)
        if entry is None or (entry.size_bytes, entry.modified_ns, entry.inode) != stamp:
            summary, is_lasting = _read(path, read)
            if summary is None or not is_lasting or not path.isprintable():
                return summary
            entry = _Entry(*stamp, summary)
            self._entries[path] = entry
            self._is_changed = True
        self._used[path] = entry
        return entry.summary

    def save(self) -> None:
        """Write what was learnt since the last time, beside what another process wrote meanwhile."""
        used, self._used = self._used, {}
        if not self._is_changed:
            return
        others = {path: entry for path, entry in _load(self._path).items() if path not in used}
        # What falls off the end is what this process did not ask for.
        self._entries = dict(islice((used | others).items(), ENTRIES_LIMIT))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            body = msgspec.msgpack.encode(self._entries)
            write_atomically(self._path, _MAGIC + _checksum(body) + body)
        except OSError:
            return
        self._is_changed = False


def _read(path: str, read: Callable[[Path], ModelFacts | GgufFileFacts]) -> tuple[FileSummary | None, bool]:
    """What the file says, and whether that holds until the file changes."""
    try:
        return _summary(read(Path(path))), True
    except LoadFailed as error:
        # Rights and disks get better without the file changing.
        return FileSummary(is_model=True, error=error.message[:_ERROR_LIMIT]), not isinstance(
            error.__cause__, OSError
        )
    except ModelNotFound:
        return None, False


def _summary(file: ModelFacts | GgufFileFacts) -> FileSummary:
    if isinstance(file, ModelFacts):
        return _of_facts(file, file.parameters)
    if file.facts is None:
        is_part = file.kind == "part"
        senses = () if file.projector is None else file.projector.senses
        return FileSummary(
            is_part,
            parameters=file.parameters,
            capabilities=senses,
            number=file.number,
            count=file.count,
        )
    return _of_facts(file.facts, file.parameters, file.number, file.count)


def _of_facts(facts: ModelFacts, parameters: int, number: int = 1, count: int = 1) -> FileSummary:
    return FileSummary(
        is_model=True,
        architecture=facts.architecture,
        quantisation=facts.quantisation,
        parameters=parameters,
        context_length=facts.context_length,
        capabilities=facts.capabilities,
        number=number,
        count=count,
    )


def _load(path: Path) -> dict[str, _Entry]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _SIZE_LIMIT:
            return {}
        content = path.read_bytes()
        check = content[len(_MAGIC) : len(_MAGIC) + _CHECK_BYTES]
        body = content[len(_MAGIC) + _CHECK_BYTES :]
        if not content.startswith(_MAGIC) or check != _checksum(body):
            return {}
        return _decode(body)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _checksum(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(_CHECK_BYTES, "little")
