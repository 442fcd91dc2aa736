"""What a hub says of a repository: which commit a revision means, its files, their sizes and digests."""

import time
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Final
from urllib.parse import quote

import msgspec

from ganglion.core.errors import LoadFailed
from ganglion.registry.digests import is_digest
from ganglion.registry.flights import Stop
from ganglion.registry.hub_cache import is_below, is_commit
from ganglion.registry.hub_requests import Attempts, HubRequests, Patience, Transient, unreachable

LIMIT_BYTES: Final = 64 << 20
"""The largest repositories list some ten thousand files in a few megabytes."""
DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of the repository, as the hub describes it."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit."""

    commit: str
    files: tuple[ListedFile, ...]


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


def list_files(
    requests: HubRequests, repo: str, revision: str, patience: Patience, suffix: str = ".gguf"
) -> Listing:
    """The files of `repo` that end in `suffix`; raises HubUnreachable, ModelNotFound or LoadFailed."""
    path = f"api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"
    attempts = Attempts(requests.endpoint, patience, Stop())
    while True:
        try:
            with requests.get(path, repo) as response:
                body = _whole(response)
            break
        except Transient as error:
            attempts.failed(error)
    try:
        info = msgspec.json.decode(body, type=_Info)
    except msgspec.MsgspecError as error:
        raise unreachable(
            requests.endpoint, f"what it answered is no repository's listing ({error})"
        ) from error
    files = (_file(repo, sibling) for sibling in info.siblings if sibling.rfilename.lower().endswith(suffix))
    if not is_commit(info.sha):
        raise LoadFailed(f"The hub's listing of {repo} names the commit {info.sha[:80]!r}, which is none.")
    return Listing(info.sha, tuple(files))


def _file(repo: str, sibling: _Sibling) -> ListedFile:
    size_bytes = sibling.lfs.size if sibling.lfs else sibling.size
    digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    # These become names of files here, and a hub is a stranger.
    if size_bytes is None or size_bytes < 0 or not is_digest(digest or "") or not is_below(sibling.rfilename):
        name = sibling.rfilename[:99]
        raise LoadFailed(f"The hub's listing of {repo} gives no usable name, size or digest for {name!r}.")
    return ListedFile(sibling.rfilename, size_bytes, digest or "")


def _whole(response: HTTPResponse) -> bytes:
    chunks, size_bytes, until = [], 0, time.monotonic() + DEADLINE_S
    try:
        while chunk := response.read1(1 << 20):
            chunks.append(chunk)
            size_bytes += len(chunk)
            if size_bytes > LIMIT_BYTES or time.monotonic() > until:
                raise Transient(f"its listing is longer than {LIMIT_BYTES} bytes or {DEADLINE_S:.0f} s")
    except (OSError, HTTPException, ValueError) as error:
        raise Transient(f"the connection broke: {error or type(error).__name__}") from error
    announced = response.headers.get("Content-Length")
    if announced is not None and announced != str(size_bytes):
        raise Transient("the connection was cut")
    return b"".join(chunks)
