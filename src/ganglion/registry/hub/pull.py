"""Pulls a model into the cache: verifies what is there, downloads what is missing, then links it.

Law: a file gets its final name only after its digest was found right, and a name in a snapshot only after all
files of its model are there.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from ganglion.core.errors import LoadFailed, ModelNotFound, StorageFull
from ganglion.registry.files.receipts import Receipts, locked
from ganglion.registry.hub.cache import RepoCache
from ganglion.registry.hub.download import Report
from ganglion.registry.hub.fetch import FileFetch
from ganglion.registry.hub.flights import StopSignal
from ganglion.registry.hub.listing import HubFile, HubFiles
from ganglion.registry.hub.requests import HubRequests, HubRetryLimits

_FileIdentity = tuple[int, int, int]


class ModelPull:
    """The download of one model."""

    def __init__(
        self,
        requests: HubRequests,
        patience: HubRetryLimits,
        receipts: Receipts,
        cache: Path,
        files: HubFiles,
        *,
        is_offline: bool,
        is_full: bool,
        report: Report,
        stop: StopSignal,
        check: Callable[[str, Path], None] = lambda path, blob: None,
    ) -> None:
        """`check` is told of each file once its bytes are here, and may raise to end the pull there."""
        self._check_file = check
        self._requests = requests
        self._patience = patience
        self._receipts = receipts
        self._files = files
        self._is_offline = is_offline
        self._is_full = is_full
        self._cache = RepoCache(cache, files.repo)
        self._done = dict.fromkeys(files.files, 0)
        self._report_total = report
        self._stop = stop

    def run(self) -> Path:
        """Download and verify all files; returns the first one's path in the snapshot, or their folder."""
        files = self._files
        missing = {
            file: stamp for file in files.files for stamp in (self._stamp(file),) if not self._is_whole(file)
        }
        if missing:
            self._refuse_unless_possible(list(missing))
        for file in files.files:
            if file in missing:
                self._download(file, missing[file])
            self._check_file(file.path, self._path(file) or self._cache.snapshot(files.commit))
        paths = [self._link(file) for file in files.files]
        self._cache.point(files.revision, files.commit)
        self._report_total(files.size_bytes, files.size_bytes)
        return paths[0] if files.format == "gguf" else self._cache.snapshot(files.commit)

    def _is_whole(self, file: HubFile) -> bool:
        path = self._path(file)
        if path is None or path.stat().st_size != file.size_bytes:
            return False
        try:
            self._receipts.verify(
                path,
                is_full=self._is_full,
                digest=file.digest,
                report=lambda done, _: self._report(file, done),
                check=self._stop.check,
            )
        except LoadFailed:
            if self._is_offline:
                raise
            return False
        self._report(file, file.size_bytes)
        return True

    def _refuse_unless_possible(self, missing: list[HubFile]) -> None:
        files = self._files
        if self._is_offline or any(file.digest is None for file in missing):
            raise ModelNotFound(
                f"{files.repo}:{files.quant}",
                hint="Offline mode is on (HF_HUB_OFFLINE), and files of it are no longer in the cache.",
            )
        partials = [self._cache.partial(file.digest or "") for file in missing]
        needed = sum(file.size_bytes for file in missing) - sum(_size(path) for path in partials)
        free = _free_bytes(self._cache.folder)
        if needed > free:
            raise StorageFull(
                f"{files.repo} needs {needed} more bytes in {self._cache.cache}, and {free} are free.",
                hint="Free space, or set HF_HOME to a folder on another disk.",
                extras={"required_bytes": needed, "free_bytes": free},
            )

    def _download(self, file: HubFile, seen: _FileIdentity | None) -> None:
        digest = file.digest or ""
        partial_path = self._cache.partial(digest)
        with locked(self._cache.lock(digest), lambda: self._watch(file, partial_path)):
            if self._stamp(file) != seen and self._is_whole(file):
                return
            FileFetch(
                self._requests,
                self._patience,
                self._files.repo,
                f"{self._files.repo}/resolve/{self._files.commit}/{quote(file.path)}",
                size_bytes=file.size_bytes,
                digest=digest,
                stop=self._stop,
                report=lambda done: self._report(file, done),
            ).into(partial_path)
            blob = self._cache.keep(digest)
            self._receipts.remember(blob, digest)

    def _watch(self, file: HubFile, partial_path: Path) -> None:
        """Report the progress of another process that holds the lock, by the size of its file."""
        self._stop.check()
        self._report(file, min(_size(partial_path), file.size_bytes))

    def _link(self, file: HubFile) -> Path:
        if file.digest is None:
            return self._cache.snapshot(self._files.commit) / file.path
        return self._cache.link(self._files.commit, file.path, file.digest)

    def _report(self, file: HubFile, done: int) -> None:
        self._done[file] = done
        self._report_total(sum(self._done.values()), self._files.size_bytes)

    def _path(self, file: HubFile) -> Path | None:
        name = self._cache.snapshot(self._files.commit) / file.path
        if name.is_file():
            return name
        blob = self._cache.blob(file.digest) if file.digest else name
        return blob if blob.is_file() else None

    def _stamp(self, file: HubFile) -> _FileIdentity | None:
        path = self._path(file)
        if path is None:
            return None
        status = path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _free_bytes(folder: Path) -> int:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(existing).free
