"""Files of models removed from the disk, with what was kept about them."""

import os
from contextlib import suppress
from pathlib import Path

from ganglion.registry.hub_cache import is_commit
from ganglion.registry.locks import locked
from ganglion.registry.receipts import Receipts


def remove_from_folder(file: Path, receipts: Receipts) -> int:
    """Remove one file, or the link to one; gives how many bytes that freed."""
    receipts.forget(file)
    freed_bytes = _freed_bytes(file)
    file.unlink()
    return freed_bytes


def remove_from_cache(file: Path, receipts: Receipts) -> int:
    """Remove a name in a snapshot, and its blob unless another name uses it; gives the bytes freed."""
    snapshot = next(folder for folder in file.parents if folder.parent.name == "snapshots")
    repository = snapshot.parent.parent
    blob = Path(os.path.realpath(file))
    if not file.is_symlink() or blob.parent != repository / "blobs":
        freed_bytes = remove_from_folder(file, receipts)
    else:
        # The lock that downloads take: none may link this blob anew while it goes.
        with locked(repository.parent / ".locks" / repository.name / f"{blob.name}.lock"):
            file.unlink()
            freed_bytes = 0 if _is_used(repository, blob) else remove_from_folder(blob, receipts)
    _tidy(file.parent, snapshot, repository)
    return freed_bytes


def _freed_bytes(file: Path) -> int:
    status = file.lstat()
    return status.st_size if not file.is_symlink() and status.st_nlink == 1 else 0


def _is_used(repository: Path, blob: Path) -> bool:
    names = (repository / "snapshots").rglob("*")
    return any(name.is_symlink() and Path(os.path.realpath(name)) == blob for name in names)


def _tidy(folder: Path, snapshot: Path, repository: Path) -> None:
    """Remove folders that are empty now, and the references to a commit of which nothing is left."""
    with suppress(OSError):
        while folder != repository:
            folder.rmdir()
            folder = folder.parent
    if snapshot.exists():
        return
    for reference in (repository / "refs").rglob("*"):
        with suppress(OSError, UnicodeDecodeError):
            commit = reference.read_text().strip()
            if is_commit(commit) and commit == snapshot.name:
                reference.unlink()
    # From the inside out, and each only if it is empty: partial downloads and other files stay.
    with suppress(OSError):
        for inner in sorted((repository / "refs").rglob("*"), reverse=True):
            inner.rmdir()
        (repository / "refs").rmdir()
    for inner in (repository / "blobs", repository):
        with suppress(OSError):
            inner.rmdir()
