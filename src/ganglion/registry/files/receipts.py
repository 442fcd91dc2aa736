"""Verifies that model files are unchanged: by receipts of earlier checks, or by hashing.

Law: a file is trusted without reading it only while its size, modification time and inode are those it had
when its digest was right.
"""

import os
import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from filelock import FileLock, Timeout

from ganglion.core.errors import LoadFailed
from ganglion.registry.files.digests import chunks_of, digest_like, is_digest, kind_of
from ganglion.registry.files.whole_files import write_atomically
from ganglion.registry.hub.download import Report

_POLL_S: Final = 0.1


@contextmanager
def locked(path: Path, check: Callable[[], None] = lambda: None) -> Generator[None]:
    """Hold a lock file, made when it is missing; `check` is called while waiting and may raise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        while True:
            check()
            with suppress(Timeout):
                held.enter_context(FileLock(path, timeout=_POLL_S))
                break
        yield


_RECEIPTS_LIMIT: Final = 4096
"""More receipts than models anyone keeps; beyond it the oldest go, and cost one hashing."""
_OLLAMA_BLOB: Final = re.compile(r"sha256-([0-9a-f]{64})")
_LINKS: Final = 8


class _Receipt(msgspec.Struct, frozen=True):
    """A file's digest, with its size and times when it was hashed."""

    digest: str
    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """The file has the expected digest: hashed just now, or unchanged since it was."""

    path: Path
    digest: str
    is_hashed: bool


@dataclass(frozen=True, slots=True)
class UnknownDigest:
    """No digest is known for the file: it has no receipt, and its store names none."""

    path: Path


class Receipts:
    """The receipts kept in one file; safe to use from many threads and processes."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def verify(
        self,
        path: Path,
        *,
        is_full: bool,
        digest: str | None = None,
        report: Report = lambda done, total: None,
        check: Callable[[], None] = lambda: None,
    ) -> VerifiedFile | UnknownDigest:
        """Whether a file is what `digest`, its store or its receipt says; raises LoadFailed when damaged.

        Hashed are files without a fitting receipt, and all with `is_full`; `check` is called meanwhile and
        may raise to stop it.
        """
        real = Path(os.path.realpath(path))
        receipt = self._all().get(str(real))
        expected = digest or digest_of_store(path) or (receipt.digest if receipt else None)
        if expected is None:
            return UnknownDigest(path)
        try:
            now = _receipt(real, expected)
            if receipt == now and not is_full:
                return VerifiedFile(path, expected, is_hashed=False)
            found = _hash(real, now, report, check)
        except OSError as error:
            raise LoadFailed(f"{path} could not be read: {error.strerror or error}.") from error
        if found != expected:
            self.forget(path)
            raise _damaged(path, found, expected)
        self._change(real, now)
        return VerifiedFile(path, expected, is_hashed=True)

    def remember(self, path: Path, digest: str) -> None:
        """Note that a file was verified just now."""
        real = Path(os.path.realpath(path))
        self._change(real, _receipt(real, digest))

    def forget(self, path: Path) -> None:
        """Drop a file's receipt, so that it is hashed before it is next trusted."""
        self._change(Path(os.path.realpath(path)), None)

    def _all(self) -> dict[str, _Receipt]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, _Receipt])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _change(self, real: Path, receipt: _Receipt | None) -> None:
        # A receipt that cannot be written costs one more hashing, and no model its load.
        with suppress(OSError), locked(self._file.with_suffix(".lock")):
            receipts = self._all()
            if receipts.pop(str(real), None) is None and receipt is None:
                return
            if receipt is not None:
                receipts = {path: kept for path, kept in receipts.items() if Path(path).exists()}
                receipts[str(real)] = receipt
            kept = dict(list(receipts.items())[-_RECEIPTS_LIMIT:])
            write_atomically(self._file, msgspec.json.format(msgspec.json.encode(kept)))


def digest_of_store(path: Path) -> str | None:
    """The digest that a file's store gives it by its name: Hugging Face's and Ollama's blobs are named so."""
    step = Path(os.path.abspath(path))  # noqa: PTH100 (links must stay: the names on the way are what is asked for)
    for _ in range(_LINKS):
        if ollama := _OLLAMA_BLOB.fullmatch(step.name):
            return ollama[1]
        # Only below models--…: elsewhere such a name may be any hash, as in the cache's shared blobs.
        if step.parent.name == "blobs" and step.parent.parent.name.startswith("models--"):
            return step.name if is_digest(step.name) else None
        try:
            target = step.parent.resolve() / step.readlink()
        except OSError:
            return None
        step = target.parent.resolve() / target.name
    return None


def _receipt(real: Path, digest: str) -> _Receipt:
    status = real.stat()
    return _Receipt(digest, status.st_size, status.st_mtime_ns, status.st_ino)


def _hash(real: Path, seen: _Receipt, report: Report, check: Callable[[], None]) -> str:
    digest, done = digest_like(seen.digest, seen.size_bytes), 0
    for chunk in chunks_of(real, check):
        digest.update(chunk)
        done += len(chunk)
        report(min(done, seen.size_bytes), seen.size_bytes)
    return digest.hexdigest()


def _damaged(path: Path, found: str, expected: str) -> LoadFailed:
    return LoadFailed(
        f"{path} is damaged: its {kind_of(expected)} is {found}, expected {expected}.",
        hint=f"Fetch it again with `ganglion models pull {_name_at_hub(path)}`.",
    )


def _name_at_hub(path: Path) -> str:
    for folder in path.parents:
        if folder.name.startswith("models--"):
            repo = folder.name.removeprefix("models--").replace("--", "/")
            return f"{repo}:{path.name}" if path.suffix == ".gguf" else repo
    return path.stem
