"""A bounded folder of saved prefixes, one file each.

Law: a file has its final name only when it is whole, and is believed only after its checksums: the header's
when it is indexed, the cells' when they are read. What cannot be believed is deleted. Only names that this
module gives are ever deleted. Files hold prompts, so that nobody but their owner may read them.

A file is what `state_bytes` says. Its folder is named for everything that makes cells fit: the model file's
content, the library, the type of the cache. A changed model finds an empty folder, and the old one ages out.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from time import monotonic, time_ns
from typing import BinaryIO, Final

from ganglion.engines.llama.kv.state_format import (
    TOKEN,
    KvStateHeader,
    checksum_of,
    head_of,
    read_head,
    token_bytes,
)
from ganglion.engines.llama.native.saved_state import SavedState
from ganglion.scheduler.pool import HotPrefix
from ganglion.scheduler.prefix import Digests
from ganglion.scheduler.prefix_catalogue import PrefixCatalogue
from ganglion.scheduler.slots import BlobId, Slot

MAX_FILES: Final = 1024
"""Over all models: what is indexed when a worker starts costs some 40 µs a file."""
PIECE_BYTES: Final = 8 * 2**20
"""How much is written between looks at the clock."""
STALE_S: Final = 60.0
"""A file that was not finished for so long was left by a worker that was killed."""

_FOLDER_NAME: Final = re.compile(r"[0-9a-f]{32}")
_FILE_NAME: Final = re.compile(r"[0-9a-f]{64}")
_UNFINISHED_NAME: Final = re.compile(r"[0-9a-f]{64}\.[0-9]{1,10}\.part")


@dataclass(frozen=True, slots=True)
class DiskPrefix:
    """A prefix whose cells lie in a file from `start` on."""

    key: int
    path: Path
    header: KvStateHeader
    start: int

    @property
    def tokens(self) -> list[int]:
        """The tokens whose cells these are."""
        return self.header.token_list()


@dataclass(frozen=True, slots=True)
class _SavedPrefixes:
    """What one saving came to."""

    prefixes: int
    size_bytes: int


class _OutOfTime(Exception):
    """The saving took as long as it may."""


class PrefixDiskCache:
    """The saved prefixes of one model, in its own folder under `root`; `max_bytes` bounds all of `root`."""

    def __init__(self, root: Path, fingerprint: bytes, max_bytes: int) -> None:
        self._root = root
        self._folder = root / fingerprint.hex()
        self._fingerprint = fingerprint
        self._max_bytes = max_bytes
        self._catalogue = PrefixCatalogue(can_trim=True)
        self._prefixes: dict[int, DiskPrefix] = {}

    def open(self, most_tokens: int) -> None:
        """Index what was saved, of at most so many tokens each; raises OSError if the folder is not ours."""
        _own(self._root)
        _bound(self._root, self._max_bytes)
        if self._folder.exists():
            _own(self._folder)
        for file in sorted(_files_in(self._folder)):
            found = _read_header(file.path, self._fingerprint)
            if found is None:
                _delete(file.path)
            elif len(found[0].tokens) <= TOKEN.itemsize * most_tokens:
                self._index(file.path, *found)

    def match(self, salt: str, tokens: Sequence[int], chain: Digests) -> tuple[DiskPrefix, int] | None:
        """The saved prefix that shares most with a token list, and how much."""
        match = self._catalogue.match(salt, tokens, chain, len(tokens) - 1)
        return None if match is None else (self._prefixes[match[0].key], match[1])

    def drop(self, disk_prefix: DiskPrefix) -> None:
        """Forget a file and delete it."""
        if self._prefixes.pop(disk_prefix.key, None) is not None:
            self._catalogue.remove(disk_prefix.key)
        _delete(disk_prefix.path)

    def keep(
        self, hot: Iterable[HotPrefix], state_of: Callable[[Slot | BlobId], SavedState], until_s: float
    ) -> _SavedPrefixes:
        """Save prefixes, hottest first, while there is room and time; raises OSError when it cannot write."""
        began_ns = time_ns()
        total = _bound(self._root, self._max_bytes)
        room = self._max_bytes
        count = 0
        for prefix in hot:
            if monotonic() > until_s or count == MAX_FILES:
                break
            tokens = token_bytes(prefix.tokens)
            path = self._folder / _name(prefix.salt, tokens)
            if path.exists():
                size = path.stat().st_size
            else:
                state = state_of(prefix.source)
                head = head_of(self._fingerprint, prefix.salt, tokens, state.magic, state.cells)
                size = len(head) + len(state.cells)
                if size > room:
                    continue
                if total + size > self._max_bytes:
                    oldest_of_ours_ns = began_ns - 1000 * MAX_FILES
                    total = _bound(self._root, self._max_bytes - size, keep_since_ns=oldest_of_ours_ns)
                try:
                    _write(path, head, state.cells, until_s)
                except _OutOfTime:
                    break
                total += size
            # What is deleted first is what was used longest ago, not what was written first.
            os.utime(path, ns=(began_ns, began_ns - 1000 * count))
            room -= size
            count += 1
            self._drop_covered(prefix.salt, tokens)
        _bound(self._root, self._max_bytes)
        return _SavedPrefixes(count, self._max_bytes - room)

    def _index(self, path: Path, header: KvStateHeader, start: int) -> None:
        entry = self._catalogue.add(header.salt, header.token_list())
        self._catalogue.index(entry)
        self._prefixes[entry.key] = DiskPrefix(entry.key, path, header, start)

    def _drop_covered(self, salt: str, tokens: bytes) -> None:
        """Delete what a longer prefix now stands for."""
        for disk_prefix in tuple(self._prefixes.values()):
            shorter = disk_prefix.header
            if (
                shorter.salt == salt
                and len(shorter.tokens) < len(tokens)
                and tokens.startswith(shorter.tokens)
            ):
                self.drop(disk_prefix)


def read_state(disk_prefix: DiskPrefix) -> SavedState | None:
    """A file's cells, or None when they are not what was saved; any thread may read."""
    try:
        state = SavedState.blank(disk_prefix.header.magic, disk_prefix.header.size_bytes)
        with _opened(disk_prefix.path) as file:
            file.seek(disk_prefix.start)
            count = file.readinto(state.cells)  # type: ignore[attr-defined] # typeshed's BinaryIO lacks it
    except (OSError, MemoryError):
        return None
    if count != disk_prefix.header.size_bytes or checksum_of(state.cells) != disk_prefix.header.checksum:
        return None
    with suppress(OSError):
        os.utime(disk_prefix.path)
    return state


# Files


@dataclass(frozen=True, slots=True, order=True)
class _File:
    used_ns: int
    path: Path
    size_bytes: int


def _name(salt: str, tokens: bytes) -> str:
    # The same prefix has the same name, so that what is already here is not written again.
    return blake2b(tokens, digest_size=32, key=blake2b(salt.encode()).digest()).hexdigest()


def _read_header(path: Path, fingerprint: bytes) -> tuple[KvStateHeader, int] | None:
    """What a file says of itself and where its cells begin; None when it cannot be believed."""
    try:
        with _opened(path) as file:
            return read_head(file, os.fstat(file.fileno()).st_size, fingerprint)
    except OSError:
        return None


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _write(path: Path, head: bytes, cells: memoryview, until_s: float) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    _own(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
            file.write(head)
            for start in range(0, len(cells), PIECE_BYTES):
                if monotonic() > until_s:
                    raise _OutOfTime
                file.write(cells[start : start + PIECE_BYTES])
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except BaseException:
        _delete(part)
        raise


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _own(folder: Path) -> None:
    """Make a folder that only we can look into; raises OSError when it is somebody else's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is no folder of this user's")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)


def _files_in(folder: Path) -> Iterator[_File]:
    """The finished files of a folder; unfinished ones that nobody writes any more are deleted."""
    with suppress(OSError), os.scandir(folder) as found:
        for each in found:
            with suppress(OSError):
                status = each.stat(follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    continue
                if _FILE_NAME.fullmatch(each.name):
                    yield _File(status.st_mtime_ns, Path(each.path), status.st_size)
                elif _UNFINISHED_NAME.fullmatch(each.name) and _is_stale(status.st_mtime_ns):
                    _delete(Path(each.path))


def _is_stale(used_ns: int) -> bool:
    return time_ns() - used_ns > STALE_S * 10**9


def _bound(root: Path, max_bytes: int, *, keep_since_ns: int | None = None) -> int:
    """Delete the oldest files of all models until the rest fits; returns what is left, in bytes.

    Folders that are empty then go too.
    """
    with os.scandir(root) as found:
        folders = [Path(each.path) for each in found if _FOLDER_NAME.fullmatch(each.name)]
    files = sorted(file for folder in folders for file in _files_in(folder))
    total = sum(file.size_bytes for file in files)
    count = len(files)
    for file in files:
        if total <= max_bytes and count <= MAX_FILES:
            break
        if keep_since_ns is not None and file.used_ns >= keep_since_ns:
            break
        _delete(file.path)
        total -= file.size_bytes
        count -= 1
        with suppress(OSError):
            file.path.parent.rmdir()
    return total
