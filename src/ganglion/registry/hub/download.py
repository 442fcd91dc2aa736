"""Downloads one file atomically: streamed beside its target, checked, then renamed."""

import errno
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ganglion.core.errors import LoadFailed, StorageFull

Report = Callable[[int, int], None]
"""Told how many bytes are done and how many there are in all."""

CHUNK_BYTES: Final = 1 << 18
_TIMEOUT_S: Final = 30.0
"""Of silence, not of the whole download."""


def download(url: str, target: Path, *, size_bytes: int, sha256: str, report: Report) -> None:
    """Fetch `url` into `target`; raises LoadFailed or StorageFull and then leaves nothing behind."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise LoadFailed(f"{url} is not an http or https address.")
    request = urllib.request.Request(url, headers={"user-agent": "ganglion"})  # noqa: S310 (scheme checked above)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 (scheme checked above)
            chunks = iter(lambda: response.read(CHUNK_BYTES), b"")
            keep(chunks, target, size_bytes=size_bytes, sha256=sha256, report=report)
    except urllib.error.HTTPError as error:
        with error:
            raise LoadFailed(f"{url} answered {error.code} {error.reason}.") from error
    except urllib.error.URLError as error:
        raise LoadFailed(f"{url} could not be reached: {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise LoadFailed(f"{url} broke off: {error}.") from error


def keep(chunks: Iterator[bytes], target: Path, *, size_bytes: int, sha256: str, report: Report) -> None:
    """Write chunks to `target` if together they are the file that is expected; raises otherwise."""
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise _not_writable(target, error) from error
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            digest, done = hashlib.sha256(), 0
            for chunk in chunks:
                done += len(chunk)
                if done > size_bytes:
                    break
                digest.update(chunk)
                _write(file.write, chunk, target)
                report(done, size_bytes)
            file.flush()
            os.fsync(file.fileno())
        _check(done, size_bytes, digest.hexdigest(), sha256)
        partial.chmod(0o644)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _write(write: Callable[[bytes], int], chunk: bytes, target: Path) -> None:
    try:
        write(chunk)
    except OSError as error:
        raise _not_writable(target, error) from error


def _check(done: int, size_bytes: int, found: str, expected: str) -> None:
    if done < size_bytes:
        raise LoadFailed(f"The download was cut short at {done} of {size_bytes} bytes.")
    if done > size_bytes:
        raise LoadFailed(f"The download is longer than the {size_bytes} bytes expected.")
    if found != expected:
        raise LoadFailed(f"The download has SHA-256 {found}, expected {expected}.")


def _not_writable(target: Path, error: OSError) -> LoadFailed | StorageFull:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            f"No room left for {target}.", hint="Free space, or set GANGLION_HOME to another disk."
        )
    return LoadFailed(f"{target} could not be written: {error.strerror or error}.")
