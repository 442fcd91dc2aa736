"""Downloads one file from a hub: resumed where it broke off, and kept only if its digest is right."""

import os
import re
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Final, Self

from ganglion.core.errors import LoadFailed
from ganglion.registry.files.digests import Hasher, chunks_of, digest_like, kind_of
from ganglion.registry.hub.cache import disk_errors
from ganglion.registry.hub.flights import StopSignal
from ganglion.registry.hub.requests import HubRequests, HubRetries, HubRetryLimits, TransientHubError

_READ_BYTES: Final = 1 << 20
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-")


class _PartialFile:
    """A file under way: its bytes so far and their digest.

    It is never shortened in place: where locks do not hold (some network file systems), another process may
    have given the same file its final name already.
    """

    def __init__(self, path: Path, size_bytes: int, digest: str) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._expected = digest
        self._digest: Hasher = digest_like(digest, size_bytes)
        self._descriptor = -1
        self.done = 0

    def open(self, check: Callable[[], None]) -> None:
        """Resume what an earlier attempt left; `check` may raise while that is hashed."""
        with disk_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            left = os.fstat(self._descriptor).st_size
        if left > self._size_bytes:
            return self.restart()
        for chunk in chunks_of(self._path, check) if left else ():
            self._digest.update(chunk)
            self.done += len(chunk)
        os.lseek(self._descriptor, self.done, os.SEEK_SET)
        return None

    def restart(self) -> None:
        """Start again from the first byte."""
        self.close()
        with disk_errors(self._path):
            self._path.unlink(missing_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        self._digest, self.done = digest_like(self._expected, self._size_bytes), 0

    def write(self, chunk: bytes) -> None:
        """Add bytes; they are in the file when this returns, so that a killed process loses none of them."""
        with disk_errors(self._path):
            view = memoryview(chunk)
            while view:
                view = view[os.write(self._descriptor, view) :]
        self._digest.update(chunk)
        self.done += len(chunk)

    def found(self) -> str:
        """The digest of the bytes so far."""
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Flush the bytes to disk, before the file gets the name that promises them."""
        with disk_errors(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileFetch:
    """The download of one file into its partial."""

    def __init__(
        self,
        requests: HubRequests,
        patience: HubRetryLimits,
        repo: str,
        url_path: str,
        *,
        size_bytes: int,
        digest: str,
        stop: StopSignal,
        report: Callable[[int], None],
    ) -> None:
        self._requests = requests
        self._patience = patience
        self._repo = repo
        self._url_path = url_path
        self._size_bytes = size_bytes
        self._expected = digest
        self._stop = stop
        self._report = report

    def into(self, path: Path) -> None:
        """Fill `path` with exactly the expected bytes, on the disk; raises, and keeps what may be resumed."""
        with _PartialFile(path, self._size_bytes, self._expected) as partial:
            partial.open(self._stop.check)
            is_resumed = partial.done > 0
            self._fill(partial)
            if partial.found() != self._expected and is_resumed:
                # What lay there may have been another program's, or half on the disk when the power went.
                partial.restart()
                self._fill(partial)
            if partial.found() != self._expected:
                path.unlink(missing_ok=True)
                raise self._wrong(partial.found())
            partial.sync()

    def _fill(self, partial: _PartialFile) -> None:
        attempts = HubRetries(self._requests.endpoint, self._patience, self._stop)
        counted_from = partial.done
        while partial.done < self._size_bytes:
            self._report(partial.done)
            try:
                self._attempt(partial)
            except TransientHubError as error:
                self._stop.check()
                if partial.done - counted_from >= self._patience.reset_bytes:
                    attempts.reset()
                    counted_from = partial.done
                attempts.back_off(error)
        self._report(partial.done)

    def _attempt(self, partial: _PartialFile) -> None:
        with (
            self._requests.get(self._url_path, self._repo, offset=partial.done) as response,
            self._stop.waking(response),
        ):
            if partial.done and _begins_at(response) != partial.done:
                partial.restart()
            self._read(response, partial)

    def _read(self, response: HTTPResponse, partial: _PartialFile) -> None:
        patience = self._patience
        since, from_there = time.monotonic(), partial.done
        while partial.done < self._size_bytes:
            chunk = _some(response, min(_READ_BYTES, self._size_bytes - partial.done))
            self._stop.check()
            partial.write(chunk)
            self._report(partial.done)
            now = time.monotonic()
            if now - since >= patience.silence_s:
                if partial.done - from_there < patience.slow_bytes:
                    raise TransientHubError(f"{partial.done - from_there} bytes came in {now - since:.0f} s")
                since, from_there = now, partial.done

    def _wrong(self, found: str) -> LoadFailed:
        return LoadFailed(
            f"The hub sent {self._url_path} with {kind_of(found)} {found}, expected {self._expected}.",
            hint="Nothing was kept. Try again; if it stays, the repository or a proxy on the way is damaged.",
        )


def _some(response: HTTPResponse, limit: int) -> bytes:
    try:
        chunk = response.read1(limit)
    except (OSError, HTTPException, ValueError) as error:
        raise TransientHubError(f"the connection broke: {error or type(error).__name__}") from error
    if not chunk:
        raise TransientHubError("the connection was cut")
    return chunk


def _begins_at(response: HTTPResponse) -> int:
    span = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    return int(span[1]) if response.status == 206 and span else 0
