"""The place of an engine that was built or installed here: `engines/NAME` in the home folder.

Law: that name is a link, and it only ever points at a folder that was finished and tried, and says so in its
receipt. A folder is made at the path that it keeps, because a Python environment cannot be moved: it becomes
the engine when the link is replaced, which happens at once or not at all. What is left of an attempt that was
killed lies beside it under a name that begins with a dot, where the next one goes on from it or removes it.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from ganglion.core.errors import EngineUnavailable
from ganglion.engines.installing.receipt import folder_behind


class EnginePlace:
    """One engine's link, and the folders beside it that it may point at."""

    def __init__(self, link: Path) -> None:
        self.link = link.absolute()

    @property
    def folder(self) -> Path | None:
        """The folder that the link points at; None where there is no link, or nothing at its end."""
        return folder_behind(self.link)

    def beside(self, key: str) -> Path:
        """Where a folder is made; the same key finds what an earlier attempt left."""
        return self.link.parent.resolve() / f".{self.link.name}-{key}"

    @contextmanager
    def locked(self, wait: Callable[[], None]) -> Iterator[int]:
        """Hold the place alone; `wait` is called once where another program has it.

        The descriptor is for child processes: while one that outlived its parent still writes here, the place
        stays locked.
        """
        try:
            self.link.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(
                self.link.parent / f".{self.link.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise EngineUnavailable(
                f"{self.link.parent} cannot be written: {error.strerror}.",
                hint="Set GANGLION_HOME to a folder that can, or correct its permissions.",
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def check_free(self) -> None:
        """Raise what keeps the link from being made, before anything is done for it."""
        if self.link.exists() and not self.link.is_symlink():
            raise EngineUnavailable(
                f"{self.link} is a folder that `ganglion engines` did not make, so it is not replaced.",
                hint="Move it away, then try again.",
            )

    def point_at(self, folder: Path) -> None:
        """Make a finished folder the engine; the one before it goes, unless something runs from it."""
        fresh = self.link.parent / f".{self.link.name}.link"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(folder.name)
        fresh.replace(self.link)
        self.sweep(kept=folder)

    def sweep(self, kept: Path | None) -> None:
        """Remove what earlier attempts and engines left, but for what is named and what is in use."""
        for folder in self.link.parent.resolve().glob(f".{self.link.name}-*"):
            if folder != kept and folder.is_dir() and not running_from(folder):
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self) -> int:
        """Remove the engine and what was left of attempts; gives the bytes that this freed."""
        folders = [each for each in self.link.parent.resolve().glob(f".{self.link.name}-*") if each.is_dir()]
        for folder in folders:
            running = running_from(folder)
            if running:
                raise EngineUnavailable(
                    f"{self.link} is in use by process {running[0]}.", hint="Stop that node, then try again."
                )
        freed = sum(size_of(folder) for folder in folders)
        self.link.unlink(missing_ok=True)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return freed


def running_from(folder: Path) -> list[int]:
    """Processes whose program lies in a folder, as far as this user may know."""
    found: list[int] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            if words and Path(words[0]).is_relative_to(folder):
                found.append(process.pid)
    return found


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total
