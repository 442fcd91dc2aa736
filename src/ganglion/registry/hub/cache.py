"""The Hugging Face cache on disk: where a repository's blobs, snapshots and refs lie.

Law: what bears a blob's name or stands in a snapshot is whole; what is under way is called `.incomplete`.
"""

import errno
import os
import re
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.core.errors import LoadFailed, StorageFull

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class RepoCache:
    """One repository's part of the cache."""

    cache: Path
    repo: str

    @property
    def folder_name(self) -> str:
        return "--".join(("models", *self.repo.split("/")))

    @property
    def folder(self) -> Path:
        return self.cache / self.folder_name

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest

    def partial(self, digest: str) -> Path:
        return self.folder / "blobs" / f"{digest}.incomplete"

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch, tag or commit meant when it was last fetched."""
        if is_commit(revision):
            return revision
        try:
            commit = (self.folder / "refs" / revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return commit if is_commit(commit) else None

    def files_of(self, commit: str) -> dict[str, Path]:
        """The files of a snapshot by their path in the repository; links that lead nowhere are left out."""
        snapshot = self.snapshot(commit)
        files = sorted(path for path in snapshot.rglob("*") if path.is_file())
        return {path.relative_to(snapshot).as_posix(): path for path in files}

    def keep(self, digest: str) -> Path:
        """Give a verified partial its final name, also across a power cut."""
        blob = self.blob(digest)
        with disk_errors(blob):
            self.partial(digest).replace(blob)
            folder = os.open(blob.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return blob

    def link(self, commit: str, path: str, digest: str) -> Path:
        """Give a whole blob its name in the snapshot."""
        name, blob = self.snapshot(commit) / path, self.blob(digest)
        if not blob.exists() or (name.exists() and name.samefile(blob)):
            return name
        name.parent.mkdir(parents=True, exist_ok=True)
        fresh = name.with_name(f".{name.name}.{uuid.uuid4().hex[:8]}")
        try:
            fresh.symlink_to(os.path.relpath(blob, name.parent))
        except OSError:
            # A disk without links: there the snapshot holds the file itself, as huggingface_hub does it.
            blob.replace(name)
        else:
            fresh.replace(name)
        return name

    def point(self, revision: str, commit: str) -> None:
        """Remember which commit a branch or tag means."""
        reference = self.folder / "refs" / revision
        if revision == commit or self.commit_of(revision) == commit:
            return
        reference.parent.mkdir(parents=True, exist_ok=True)
        fresh = reference.with_name(f".{reference.name}.{uuid.uuid4().hex[:8]}")
        fresh.write_text(commit)
        fresh.replace(reference)

    def lock(self, digest: str) -> Path:
        """The file that everyone who writes this blob locks."""
        return self.cache / ".locks" / self.folder_name / f"{digest}.lock"


def is_commit(text: str) -> bool:
    """Whether a revision is a commit and not a name that may move."""
    return _COMMIT.fullmatch(text) is not None


def is_below(path: str) -> bool:
    """Whether an untrusted path stays below the folder it is joined to."""
    parts = path.split("/")
    return not any(part in ("", ".", "..") or "\\" in part or "\0" in part or ":" in part for part in parts)


@contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Turn an OSError while writing `path` into the error that users see."""
    try:
        yield
    except OSError as error:
        raise _write_error(path, error) from error


def _write_error(path: Path, error: OSError) -> LoadFailed | StorageFull:
    """The error for a file that could not be written."""
    hint = "Set HF_HOME, or HF_HUB_CACHE, to a folder on another disk that this user can write."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"No room left for {path}.", hint=f"Free space. {hint}")
    return LoadFailed(f"{path} could not be written: {error.strerror or error}.", hint=hint)
