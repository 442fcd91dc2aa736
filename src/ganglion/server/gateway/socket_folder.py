"""A folder for the sockets of one gateway, where only its user gets in."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "ganglion-gateway-"


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """It is gone with the block; one that a killed gateway left is gone with the next start."""
    _sweep(Path(tempfile.gettempdir()))
    folder, lock = _locked()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked() -> tuple[Path, int]:
    """Held for as long as this process or one that it forked lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # another gateway swept it before it was locked


def _sweep(above: Path) -> None:
    for folder in above.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, or gone by now
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
