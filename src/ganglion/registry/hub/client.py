"""Models from a hub: finds a name's files there, and downloads them into the Hugging Face cache.

huggingface_hub checks sizes only and begins anew after a cut, so the bytes are fetched by ourselves; layout
and locks are those of huggingface_hub, which finds and shares what lies in the cache.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from ganglion.core.errors import HubUnreachable, ModelNotFound
from ganglion.registry.files.formats import FORMATS, Format
from ganglion.registry.files.receipts import Receipts, digest_of_store
from ganglion.registry.files.safetensors import CODE_CONFIGS, auto_map_of, refuse_code
from ganglion.registry.hub import environment as hub_environment
from ganglion.registry.hub.cache import RepoCache, disk_errors, is_below
from ganglion.registry.hub.download import Report
from ganglion.registry.hub.flights import Flights, StopSignal
from ganglion.registry.hub.listing import HubFile, HubFiles, list_files
from ganglion.registry.hub.pull import ModelPull
from ganglion.registry.hub.requests import HubRequests, HubRetryLimits
from ganglion.registry.hub.wanted import FoundModel, WantedModel

_HOSTS: Final = ("hf.co/", "huggingface.co/")
"""Written before a name by people who come from other programs."""
_RECEIPTS_FILE: Final = "receipts.json"
_UNHURRIED: Final = HubRetryLimits()

_REPO: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_REPO_CHARACTERS: Final = 96
_REVISION: Final = re.compile(r"[\w./+-]{1,200}", re.ASCII)


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
        patience: HubRetryLimits = _UNHURRIED,
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.cache = cache
        self.is_offline = is_offline
        self.receipts = receipts
        self._patience = patience
        self._requests = HubRequests(self.endpoint, token, patience)
        self._flights = Flights()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], home: Path) -> Self:
        """The hub that HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE name."""
        return cls(
            hub_environment.endpoint(environment),
            hub_environment.token(environment),
            hub_environment.cache_folder(environment),
            hub_environment.is_offline(environment),
            receipts=Receipts(home / "cache" / _RECEIPTS_FILE),
        )

    def find(
        self,
        repo: str,
        quant: str | None,
        revision: str | None = None,
        *,
        formats: tuple[Format, ...] = FORMATS,
        trusts_code: bool = False,
    ) -> HubFiles:
        """The files of `repo:quant`; without a quant, the first of `quantisation.PREFERRED` that there is.

        Where a repository has both GGUF files and a checkpoint, the quant may name the format, and else
        `formats` says which is taken first. Code of a checkpoint is left out unless it is trusted.

        Raises ModelNotFound with what there is instead, LoadFailed where the hub refuses, HubUnreachable when
        it does not answer and the model is not cached.
        """
        revision = revision or "main"
        _check_names(repo, revision)
        wanted = WantedModel(repo, quant, formats, trusts_code)
        if self.is_offline:
            return self._find_here(wanted, revision)
        try:
            here = self._find_here(wanted, revision)
        except ModelNotFound:
            return self._find_there(wanted, revision, self._patience)
        try:
            return self._find_there(wanted, revision, replace(self._patience, attempts=1))
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
        """Download the files into the cache, verified; returns the path of the model in the snapshot.

        However many ask, in this process or another, there is one download; everyone gets its progress, in
        bytes of all files. A checkpoint with code that is not trusted is refused before its weights are
        fetched. Raises Cancelled when `cancelled` says so (asked some times a second). Cached
        files are trusted by their receipts, hashed in full with `is_full`, and fetched again when damaged.
        """
        paths = tuple(file.path for file in files.files)
        key = (files.repo, files.commit, files.revision, paths, is_full, files.trusts_code)

        def check(path: str, blob: Path) -> None:
            if not files.trusts_code and path in CODE_CONFIGS:
                refuse_code(files.repo, auto_map_of(blob))

        def pull(tell: Report, stop: StopSignal) -> Path:
            with disk_errors(self.cache):
                return ModelPull(
                    self._requests,
                    self._patience,
                    self.receipts,
                    self.cache,
                    files,
                    is_offline=self.is_offline,
                    is_full=is_full,
                    report=tell,
                    stop=stop,
                    check=check,
                ).run()

        return self._flights.join(key, pull, report, cancelled)

    def _find_there(self, wanted: WantedModel, revision: str, patience: HubRetryLimits) -> HubFiles:
        listing = list_files(self._requests, wanted.repo, revision, patience)
        listed = {file.path: file for file in listing.files}
        found = wanted.among(listed, listing.others)
        place = RepoCache(self.cache, wanted.repo)
        files = tuple(
            HubFile(path, file.size_bytes, file.digest, _is_here(place, listing.commit, path, file.digest))
            for path in found.paths
            for file in (listed[path],)
        )
        return _of(wanted, revision, listing.commit, found, files)

    def _find_here(self, wanted: WantedModel, revision: str) -> HubFiles:
        place = RepoCache(self.cache, wanted.repo)
        commit = place.commit_of(revision)
        here = place.files_of(commit) if commit else {}
        if commit is None or not here:
            raise ModelNotFound(wanted.repo, hint=self._offline_hint())
        try:
            found = wanted.among(here)
        except ModelNotFound as error:
            hint = f"{self._offline_hint()} {error.hint}" if wanted.quant else self._offline_hint()
            raise ModelNotFound(str(wanted), hint=hint) from error
        files = (
            HubFile(path, here[path].stat().st_size, digest_of_store(here[path]), is_cached=True)
            for path in found.paths
        )
        return _of(wanted, revision, commit, found, tuple(files))

    def _offline_hint(self) -> str:
        return f"Offline mode is on (HF_HUB_OFFLINE), and the cache in {self.cache} does not hold it."


def _of(
    wanted: WantedModel, revision: str, commit: str, found: FoundModel, files: tuple[HubFile, ...]
) -> HubFiles:
    is_trusted = wanted.trusts_code
    return HubFiles(wanted.repo, revision, commit, found.quant, files, found.format, is_trusted)


def split_name(name: str) -> tuple[str, str | None]:
    """`org/repo[:quant]` as repository and quantisation."""
    for host in _HOSTS:
        name = name.removeprefix(host)
    repo, _, quant = name.partition(":")
    return repo, quant or None


def is_repo(name: str) -> bool:
    """Whether a name has the form of a repository's, `org/repo`; nothing else is ever asked for or opened."""
    is_formed = _REPO.fullmatch(name) is not None and len(name) <= _REPO_CHARACTERS
    return is_formed and ".." not in name and "--" not in name


def _check_names(repo: str, revision: str) -> None:
    if not is_repo(repo):
        raise ModelNotFound(repo, hint="A model at a hub is named org/repo or org/repo:quant.")
    if not (_REVISION.fullmatch(revision) and is_below(revision)):
        raise ModelNotFound(repo, hint=f"{revision[:80]!r} is no branch, tag or commit.")


def _is_here(place: RepoCache, commit: str, path: str, digest: str) -> bool:
    return (place.snapshot(commit) / path).is_file() or place.blob(digest).is_file()
