"""Models from a hub: what a name means there, and its files here, in the Hugging Face cache.

Law: a file gets its final name only after its digest was found right, and a name in a snapshot only after all
files of its model are there. huggingface_hub checks sizes only and begins anew after a cut, so the bytes are
fetched here; layout and locks are those of huggingface_hub, which finds and shares what lies in the cache.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from ganglion.core.errors import HubUnreachable, LoadFailed, ModelNotFound, StorageFull
from ganglion.registry.download import Report
from ganglion.registry.flights import Flights, Stop
from ganglion.registry.hub_cache import RepoCache, is_below, storing
from ganglion.registry.hub_fetch import Fetch
from ganglion.registry.hub_listing import list_files
from ganglion.registry.hub_requests import HubRequests, Patience
from ganglion.registry.locks import locked
from ganglion.registry.quants import choose, variants
from ganglion.registry.receipts import Receipts, digest_of_store

ENDPOINT: Final = "https://huggingface.co"
HOSTS: Final = ("hf.co/", "huggingface.co/")
"""Written before a name by people who come from other programs."""
RECEIPTS_FILE: Final = "receipts.json"
UNHURRIED: Final = Patience()

_REPO: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_REPO_CHARACTERS: Final = 96
_REVISION: Final = re.compile(r"[\w./+-]{1,200}", re.ASCII)
_TRUE: Final = frozenset({"1", "on", "yes", "true"})

Stamp = tuple[int, int, int]


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
    """The files that a name means, at one commit: what `fetch` would have to be here."""

    repo: str
    revision: str
    commit: str
    quant: str
    files: tuple[HubFile, ...]
    """Of a split model all parts, in order."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def is_cached(self) -> bool:
        return all(file.is_cached for file in self.files)


class Hub:
    """A hub and the cache of what came from it; blocking, and safe to use from many threads."""

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        cache: Path,
        is_offline: bool,
        *,
        receipts: Receipts,
        patience: Patience = UNHURRIED,
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.cache = cache
        self.is_offline = is_offline
        self.receipts = receipts
        self.patience = patience
        self.requests = HubRequests(self.endpoint, token, patience)
        self._flights = Flights()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], home: Path) -> Self:
        """The hub that HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE speak of."""
        offline = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
        return cls(
            environment.get("HF_ENDPOINT") or ENDPOINT,
            _token(environment),
            cache_folder(environment),
            offline.lower() in _TRUE,
            receipts=Receipts(home / "cache" / RECEIPTS_FILE),
        )

    def find(self, repo: str, quant: str | None, revision: str | None = None) -> HubFiles:
        """Which files `repo:quant` means; without a quant the first of `quants.PREFERENCE` that there is.

        Raises ModelNotFound with what there is instead, LoadFailed where the hub refuses, HubUnreachable when
        it does not answer and the model is not cached.
        """
        revision = revision or "main"
        _check_names(repo, revision)
        if self.is_offline:
            return self._find_here(repo, quant, revision)
        try:
            here = self._find_here(repo, quant, revision)
        except ModelNotFound:
            return self._find_there(repo, quant, revision, self.patience)
        try:
            return self._find_there(repo, quant, revision, replace(self.patience, attempts=1))
        except HubUnreachable:
            return here

    def fetch(
        self,
        files: HubFiles,
        report: Report,
        cancelled: Callable[[], bool],
        *,
        is_full: bool = False,
    ) -> Path:
        """Have the files in the cache, verified, and give the first one's path in the snapshot.

        However many ask, in this process or another, there is one download; everyone gets its progress, in
        bytes of all files. Raises Cancelled when `cancelled` says so (asked some times a second). Cached
        files are trusted by their receipts, hashed in full with `is_full`, and fetched again when damaged.
        """
        key = (files.repo, files.commit, files.revision, tuple(file.path for file in files.files), is_full)

        def pull(tell: Report, stop: Stop) -> Path:
            with storing(self.cache):
                return _Pull(self, files, is_full, tell, stop).run()

        return self._flights.ride(key, pull, report, cancelled)

    def _find_there(self, repo: str, quant: str | None, revision: str, patience: Patience) -> HubFiles:
        listing = list_files(self.requests, repo, revision, patience)
        listed = {file.path: file for file in listing.files}
        model = choose(repo, quant, variants(listed))
        place = RepoCache(self.cache, repo)
        files = tuple(
            HubFile(path, file.size_bytes, file.digest, _is_here(place, listing.commit, path, file.digest))
            for path in model.paths
            for file in (listed[path],)
        )
        return HubFiles(repo, revision, listing.commit, model.quant, files)

    def _find_here(self, repo: str, quant: str | None, revision: str) -> HubFiles:
        place = RepoCache(self.cache, repo)
        commit = place.commit_of(revision)
        here = place.files_of(commit) if commit else {}
        models = variants(here)
        if commit is None or not models:
            raise ModelNotFound(repo, hint=self._offline_hint())
        try:
            model = choose(repo, quant, models)
        except ModelNotFound as error:
            raise ModelNotFound(f"{repo}:{quant}", hint=f"{self._offline_hint()} {error.hint}") from error
        files = (
            HubFile(path, here[path].stat().st_size, digest_of_store(here[path]), is_cached=True)
            for path in model.paths
        )
        return HubFiles(repo, revision, commit, model.quant, tuple(files))

    def _offline_hint(self) -> str:
        return f"Offline mode is on (HF_HUB_OFFLINE), and the cache in {self.cache} does not hold it."


class _Pull:
    """One model on its way into the cache."""

    def __init__(self, hub: Hub, files: HubFiles, is_full: bool, report: Report, stop: Stop) -> None:
        self._hub = hub
        self._files = files
        self._is_full = is_full
        self._place = RepoCache(hub.cache, files.repo)
        self._done = dict.fromkeys(files.files, 0)
        self._tell = report
        self._stop = stop

    def run(self) -> Path:
        files = self._files
        missing = {
            file: stamp for file in files.files for stamp in (self._stamp(file),) if not self._is_whole(file)
        }
        if missing:
            self._refuse_unless_possible(list(missing))
        for file, stamp in missing.items():
            self._download(file, stamp)
        paths = [self._link(file) for file in files.files]
        self._place.point(files.revision, files.commit)
        self._tell(files.size_bytes, files.size_bytes)
        return paths[0]

    def _is_whole(self, file: HubFile) -> bool:
        path = self._path(file)
        if path is None or path.stat().st_size != file.size_bytes:
            return False
        try:
            self._hub.receipts.verify(
                path,
                is_full=self._is_full,
                digest=file.digest,
                report=lambda done, _: self._report(file, done),
                check=self._stop.check,
            )
        except LoadFailed:
            if self._hub.is_offline:
                raise
            return False
        self._report(file, file.size_bytes)
        return True

    def _refuse_unless_possible(self, missing: list[HubFile]) -> None:
        files = self._files
        if self._hub.is_offline or any(file.digest is None for file in missing):
            raise ModelNotFound(
                f"{files.repo}:{files.quant}",
                hint="Offline mode is on (HF_HUB_OFFLINE), and files of it are no longer in the cache.",
            )
        partials = [self._place.partial(file.digest or "") for file in missing]
        needed = sum(file.size_bytes for file in missing) - sum(_size(path) for path in partials)
        free = _free_bytes(self._place.folder)
        if needed > free:
            raise StorageFull(
                f"{files.repo} needs {needed} more bytes in {self._hub.cache}, and {free} are free.",
                hint="Free space, or set HF_HOME to a folder on another disk.",
                extras={"required_bytes": needed, "free_bytes": free},
            )

    def _download(self, file: HubFile, seen: Stamp | None) -> None:
        digest = file.digest or ""
        partial_path = self._place.partial(digest)
        with locked(self._place.lock(digest), lambda: self._watch(file, partial_path)):
            if self._stamp(file) != seen and self._is_whole(file):
                return
            Fetch(
                self._hub.requests,
                self._hub.patience,
                self._files.repo,
                f"{self._files.repo}/resolve/{self._files.commit}/{quote(file.path)}",
                size_bytes=file.size_bytes,
                digest=digest,
                stop=self._stop,
                report=lambda done: self._report(file, done),
            ).into(partial_path)
            blob = self._place.keep(digest)
            self._hub.receipts.remember(blob, digest)

    def _watch(self, file: HubFile, partial_path: Path) -> None:
        """While another process has the lock, its file says how far it is."""
        self._stop.check()
        self._report(file, min(_size(partial_path), file.size_bytes))

    def _link(self, file: HubFile) -> Path:
        if file.digest is None:
            return self._place.snapshot(self._files.commit) / file.path
        return self._place.link(self._files.commit, file.path, file.digest)

    def _report(self, file: HubFile, done: int) -> None:
        self._done[file] = done
        self._tell(sum(self._done.values()), self._files.size_bytes)

    def _path(self, file: HubFile) -> Path | None:
        name = self._place.snapshot(self._files.commit) / file.path
        if name.is_file():
            return name
        blob = self._place.blob(file.digest) if file.digest else name
        return blob if blob.is_file() else None

    def _stamp(self, file: HubFile) -> Stamp | None:
        path = self._path(file)
        if path is None:
            return None
        status = path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size


def split_name(name: str) -> tuple[str, str | None]:
    """`org/repo[:quant]` as repository and quantisation."""
    for host in HOSTS:
        name = name.removeprefix(host)
    repo, _, quant = name.partition(":")
    return repo, quant or None


def is_repo(name: str) -> bool:
    """Whether a name has the form of a repository's, `org/repo`; nothing else is ever asked for or opened."""
    is_formed = _REPO.fullmatch(name) is not None and len(name) <= _REPO_CHARACTERS
    return is_formed and ".." not in name and "--" not in name


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where the Hugging Face cache lies, as huggingface_hub decides it."""
    named = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return _expanded(named) if named else _hf_home(environment) / "hub"


def _hf_home(environment: Mapping[str, str]) -> Path:
    if named := environment.get("HF_HOME"):
        return _expanded(named)
    return _expanded(environment.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()


def _token(environment: Mapping[str, str]) -> str | None:
    if environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in _TRUE:
        return None
    token = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")
    if not token:
        named = environment.get("HF_TOKEN_PATH")
        try:
            token = (_expanded(named) if named else _hf_home(environment) / "token").read_text()
        except (OSError, UnicodeDecodeError):
            return None
    return token.strip() or None


def _check_names(repo: str, revision: str) -> None:
    if not is_repo(repo):
        raise ModelNotFound(repo, hint="A model at a hub is named org/repo or org/repo:quant.")
    if not (_REVISION.fullmatch(revision) and is_below(revision)):
        raise ModelNotFound(repo, hint=f"{revision[:80]!r} is no branch, tag or commit.")


def _is_here(place: RepoCache, commit: str, path: str, digest: str) -> bool:
    return (place.snapshot(commit) / path).is_file() or place.blob(digest).is_file()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _free_bytes(folder: Path) -> int:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(existing).free
