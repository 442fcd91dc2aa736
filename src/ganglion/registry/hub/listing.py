"""A repository as its hub lists it: the commit of a revision, and its files, sizes and digests."""

import time
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from itertools import islice
from typing import Final
from urllib.parse import quote

import msgspec

from ganglion.core.errors import LoadFailed
from ganglion.registry.files.checkpoint_files import is_beside, is_code, is_weights
from ganglion.registry.files.digests import is_digest
from ganglion.registry.files.formats import Format
from ganglion.registry.hub.cache import is_below, is_commit
from ganglion.registry.hub.flights import StopSignal
from ganglion.registry.hub.requests import (
    HubRequests,
    HubRetries,
    HubRetryLimits,
    TransientHubError,
    unreachable,
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a model at a hub."""

    path: str
    """In the repository."""
    size_bytes: int
    digest: str | None
    """SHA-256, or git's SHA-1 for a file that is not in LFS; None for a cached file nothing says it of."""
    is_cached: bool

    @property
    def sha256(self) -> str | None:
        return self.digest if self.digest and len(self.digest) == 64 else None


@dataclass(frozen=True, slots=True)
class HubFiles:
    """The files of one model at one commit, as `fetch` takes them."""

    repo: str
    revision: str
    commit: str
    quant: str
    files: tuple[HubFile, ...]
    """Of a split model all parts, in order; of a checkpoint config.json first, weights last."""
    format: Format = "gguf"
    trusts_code: bool = False
    """Whether code that comes with a checkpoint belongs to it."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def is_cached(self) -> bool:
        return all(file.is_cached for file in self.files)


_LIMIT_BYTES: Final = 64 << 20
"""The largest repositories list some ten thousand files in a few megabytes."""
_DEADLINE_S: Final = 60.0
_NAME_LIMIT: Final = 99
_OTHERS_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class _ListedFile:
    """A file of the repository, as the hub describes it."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class _RepoListing:
    """A repository at one commit."""

    commit: str
    files: tuple[_ListedFile, ...]
    others: tuple[str, ...]
    """Names of further files, for the message where a model is not among the wanted ones."""


class _Lfs(msgspec.Struct):
    sha256: str
    size: int


class _Sibling(msgspec.Struct, rename="camel"):
    rfilename: str
    size: int | None = None
    blob_id: str | None = None
    lfs: _Lfs | None = None


class _Info(msgspec.Struct):
    sha: str
    siblings: list[_Sibling] = []


def list_files(requests: HubRequests, repo: str, revision: str, patience: HubRetryLimits) -> _RepoListing:
    """The files of `repo` that a model may consist of; raises HubUnreachable, ModelNotFound or LoadFailed."""
    path = f"api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"
    attempts = HubRetries(requests.endpoint, patience, StopSignal())
    while True:
        try:
            with requests.get(path, repo) as response:
                body = _whole(response)
            break
        except TransientHubError as error:
            attempts.back_off(error)
    try:
        info = msgspec.json.decode(body, type=_Info)
    except msgspec.MsgspecError as error:
        raise unreachable(
            requests.endpoint, f"what it answered is no repository's listing ({error})"
        ) from error
    files = (_file(repo, sibling) for sibling in info.siblings if _is_wanted(sibling.rfilename))
    if not is_commit(info.sha):
        raise LoadFailed(f"The hub's listing of {repo} names the commit {info.sha[:80]!r}, which is none.")
    names = (sibling.rfilename for sibling in info.siblings if not _is_wanted(sibling.rfilename))
    others = tuple(name[:_NAME_LIMIT] for name in islice(names, _OTHERS_LIMIT))
    return _RepoListing(info.sha, tuple(files), others)


def _is_wanted(path: str) -> bool:
    return path.lower().endswith(".gguf") or is_beside(path) or is_weights(path) or is_code(path)


def _file(repo: str, sibling: _Sibling) -> _ListedFile:
    size_bytes = sibling.lfs.size if sibling.lfs else sibling.size
    digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    # These become names of files here, and a hub is a stranger.
    if size_bytes is None or size_bytes < 0 or not is_digest(digest or "") or not is_below(sibling.rfilename):
        name = sibling.rfilename[:_NAME_LIMIT]
        raise LoadFailed(f"The hub's listing of {repo} gives no usable name, size or digest for {name!r}.")
    return _ListedFile(sibling.rfilename, size_bytes, digest or "")


def _whole(response: HTTPResponse) -> bytes:
    chunks, size_bytes, until = [], 0, time.monotonic() + _DEADLINE_S
    try:
        while chunk := response.read1(1 << 20):
            chunks.append(chunk)
            size_bytes += len(chunk)
            if size_bytes > _LIMIT_BYTES or time.monotonic() > until:
                raise TransientHubError(
                    f"its listing is longer than {_LIMIT_BYTES} bytes or {_DEADLINE_S:.0f} s"
                )
    except (OSError, HTTPException, ValueError) as error:
        raise TransientHubError(f"the connection broke: {error or type(error).__name__}") from error
    announced = response.headers.get("Content-Length")
    if announced is not None and announced != str(size_bytes):
        raise TransientHubError("the connection was cut")
    return b"".join(chunks)
