"""Suspended sessions on disk, one file each.

Law: a file has its final name only when it is whole and on the disk. Names are ours alone: a session's id is
a name only after it was checked. Files hold prompts, so that nobody but their owner may read them.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ganglion.core.errors import InvalidValue, StorageFull, StoreUnusable
from ganglion.sessions.saved import MAX_HEADER_BYTES, PREFIX, SavedSession, decode_header

NAME: Final = re.compile(r"sess_[A-Za-z0-9_-]{1,64}")
SUFFIX: Final = ".session"
UNFINISHED: Final = ".part"


class SessionFolder:
    """A bounded folder; all of it blocks and belongs off the event loop."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def open(self) -> list[SavedSession]:
        """What was suspended; what cannot be read is left where it is."""
        found = []
        for file in self._files():
            with suppress(InvalidValue, OSError):
                if file.suffix == UNFINISHED:
                    file.unlink(missing_ok=True)
                    continue
                found.append(_header(file))
        return found

    def write(self, session_id: str, data: bytes) -> None:
        """Keep a session; it is on the disk when this returns."""
        self._check_room(len(data))
        path = self._file(session_id)
        fresh = path.with_suffix(UNFINISHED)
        try:
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            _sync_folder(self._path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise StorageFull(f"The session could not be written: {error.strerror}.") from error

    def read(self, session_id: str) -> bytes:
        """A session's bytes."""
        try:
            return self._file(session_id).read_bytes()
        except OSError as error:
            raise StoreUnusable(f"The session could not be read: {error.strerror}.") from error

    def remove(self, session_id: str) -> None:
        """Forget a session that lies here."""
        self._file(session_id).unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        try:
            files = sorted(self._path.iterdir())
        except FileNotFoundError:
            return  # the first session that is suspended makes it
        except OSError as error:
            raise StoreUnusable(f"Sessions cannot be kept in {self._path}: {error.strerror}.") from error
        for file in files:
            if NAME.fullmatch(file.stem) and file.suffix in (SUFFIX, UNFINISHED) and file.is_file():
                yield file

    def _file(self, session_id: str) -> Path:
        assert NAME.fullmatch(session_id)
        return self._path / f"{session_id}{SUFFIX}"

    def _check_room(self, size_bytes: int) -> None:
        held = sum(file.stat().st_size for file in self._files())
        if held + size_bytes > self._max_bytes:
            raise StorageFull(
                f"Suspended sessions take {held >> 20} MiB of the {self._max_bytes >> 20} MiB they may.",
                hint="Close some of them.",
            )


def _header(file: Path) -> SavedSession:
    with file.open("rb") as opened:
        prefix = opened.read(PREFIX.size)
        length = PREFIX.unpack(prefix)[1] if len(prefix) == PREFIX.size else 0
        return decode_header(prefix + opened.read(min(length, MAX_HEADER_BYTES)))[0]


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
