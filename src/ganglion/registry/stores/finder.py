"""The models that this machine already has: in Ganglion's folder, other programs' stores and plain folders.

Law: stores are read and never written, and what lies outside a store's root is not listed, whatever leads
there.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ganglion.registry.hub.environment import cache_folder, expanded, user_home
from ganglion.registry.naming.catalogue import NameCatalogue
from ganglion.registry.naming.manifest import ModelsManifest, read_manifest
from ganglion.registry.naming.names import real_file
from ganglion.registry.stores import layouts
from ganglion.registry.stores.index import FileIndex, FileSummary
from ganglion.registry.stores.stored_models import Store, StoredModel
from ganglion.registry.stores.walk import SUFFIX, FolderWalk, FoundFile, ModelFiles, group_files

# People sort files by maker, family and size; nobody sorts them eight folders deep.
_DEPTH: Final = 8
_SYSTEM_OLLAMA: Final = Path("/usr/share/ollama/.ollama/models")


@dataclass(frozen=True, slots=True)
class StoreRoot:
    """A folder to search, and the layout of the store in it."""

    store: Store
    path: Path


def store_roots(home: Path, environment: Mapping[str, str], extra: Sequence[Path]) -> tuple[StoreRoot, ...]:
    """Where models may lie, there or not: Ganglion's folder first, then the operator's, then other stores."""
    user = user_home(environment)
    ollama_models = environment.get("OLLAMA_MODELS")
    found = [
        StoreRoot("models folder", home / "models"),
        *(StoreRoot("folder", folder) for folder in extra),
        StoreRoot("Hugging Face cache", cache_folder(environment)),
        StoreRoot("LM Studio", user / ".lmstudio" / "models"),
        StoreRoot("LM Studio", user / ".cache" / "lm-studio" / "models"),
    ]
    if ollama_models:
        found.append(StoreRoot("Ollama", expanded(ollama_models, environment)))
    else:
        found += [StoreRoot("Ollama", user / ".ollama" / "models"), StoreRoot("Ollama", _SYSTEM_OLLAMA)]
    return tuple(dict.fromkeys(found))


def scan_stores(roots: Iterable[StoreRoot], known: FileIndex) -> tuple[StoredModel, ...]:
    """Every model in these places, in their order; only headers that `known` lacks are read, and kept there.

    One file under one name is listed once, where it was found first. Blocks for as long as the disk takes.
    """
    found: dict[tuple[str, int, int], StoredModel] = {}
    for root in roots:
        for candidate in _LAYOUTS[root.store](FolderWalk(root.path)):
            status = candidate.files[0].status
            key = (candidate.name, status.st_dev, status.st_ino)
            model = None if key in found else _model(candidate, root.store, known)
            if model is not None:
                found[key] = model
    known.save()
    return tuple(found.values())


def _plain(walk: FolderWalk) -> Iterator[ModelFiles]:
    return group_files(walk.files(walk.root, SUFFIX, _DEPTH))


def _lm_studio(walk: FolderWalk) -> Iterator[ModelFiles]:
    """`publisher/repo/file.gguf`."""
    yield from group_files(walk.files(walk.root, SUFFIX, 0))
    for publisher in walk.folders(walk.root):
        yield from group_files(walk.files(publisher.path, SUFFIX, 0))
        for repository in walk.folders(publisher.path):
            files = walk.files(repository.path, SUFFIX, _DEPTH)
            yield from group_files(files, f"{publisher.name}/{repository.name}")


_LAYOUTS: Final[Mapping[Store, Callable[[FolderWalk], Iterator[ModelFiles]]]] = {
    "models folder": _plain,
    "folder": _plain,
    "Hugging Face cache": layouts.snapshot_models,
    "LM Studio": _lm_studio,
    "Ollama": layouts.ollama_models,
}


def _model(candidate: ModelFiles, store: Store, known: FileIndex) -> StoredModel | None:
    """The candidate with what its headers say; None for what stands beside models, and what is gone."""
    first, *others = candidate.files
    summary = known.summary(first.path, first.status)
    if summary is None or not summary.is_model:
        return None
    path = _path(first)
    model = StoredModel(
        name=candidate.name,
        path=path,
        files=(path,),
        store=store,
        size_bytes=first.status.st_size,
        architecture=summary.architecture,
        quantisation=summary.quantisation,
        parameters=summary.parameters,
        context_length=summary.context_length,
        capabilities=summary.capabilities,
        hub_id=candidate.hub_id,
        error=candidate.error or _disagreement(path, summary, 1, len(candidate.files)),
    )
    for number, other in enumerate(others, start=2):
        model = _with_part(
            model, other, known.summary(other.path, other.status), number, len(candidate.files)
        )
    return model


def _path(file: FoundFile) -> Path:
    """The path by which files are compared; where no link is, the walk's own is that already."""
    return real_file(Path(file.path)) if file.is_link else Path(file.path)


def _with_part(
    model: StoredModel, file: FoundFile, summary: FileSummary | None, number: int, count: int
) -> StoredModel:
    path = _path(file)
    return replace(
        model,
        files=(*model.files, path),
        size_bytes=model.size_bytes + file.status.st_size,
        parameters=model.parameters + (0 if summary is None else summary.parameters),
        error=model.error or _disagreement(path, summary, number, count),
    )


def _disagreement(path: Path, summary: FileSummary | None, number: int, count: int) -> str | None:
    """Why the file cannot be the part that its name says."""
    if summary is None:
        return f"{path} is gone."
    if summary.error is not None:
        return summary.error
    if summary.number == number and summary.count == count:
        return None
    return f"{path} says it is part {summary.number} of {summary.count}, its name part {number} of {count}."


_FRESH_S: Final = 1.0
"""How long a listing of the disk is believed: a burst of unknown names is one walk."""


class ModelFinder:
    """Blocking, and safe to use from many threads."""

    def __init__(
        self, home: Path, environment: Mapping[str, str], *, folders: Sequence[Path], may_download: bool
    ) -> None:
        self._home = home
        self._roots: tuple[StoreRoot, ...] = store_roots(home, environment, folders)
        self._may_download = may_download
        self._lock = threading.Lock()
        self._index: FileIndex | None = None
        self._catalogue: NameCatalogue | None = None
        self._read_s = 0.0

    def manifest(self) -> ModelsManifest:
        """What `models.yaml` says now; raises what is wrong with it."""
        return read_manifest(self._home / "models.yaml")

    def catalogue(self) -> NameCatalogue:
        """Everything that a name can mean, as it was at most a second ago."""
        with self._lock:
            if self._catalogue is None or time.monotonic() - self._read_s > _FRESH_S:
                self._catalogue = NameCatalogue(
                    manifest=self.manifest(), stored=self._stored(), may_download=self._may_download
                )
                self._read_s = time.monotonic()
            return self._catalogue

    def _stored(self) -> tuple[StoredModel, ...]:
        if self._index is None:
            self._index = FileIndex(self._home / "cache")
        return scan_stores(self._roots, self._index)
