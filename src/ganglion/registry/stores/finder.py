"""The models that this machine already has: in Ganglion's folder, other programs' stores and plain folders.

Law: stores are read and never written, and what lies outside a store's root is not listed, whatever leads
there.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ganglion.registry.files.checkpoint_files import is_weights
from ganglion.registry.files.formats import FORMATS, Format
from ganglion.registry.files.projectors import with_senses
from ganglion.registry.hub.environment import cache_folder, expanded, user_home
from ganglion.registry.naming.catalogue import NameCatalogue
from ganglion.registry.naming.manifest import ModelsManifest, read_manifest
from ganglion.registry.naming.names import real_file
from ganglion.registry.stores.checkpoint_folders import checkpoint_in, checkpoints, snapshot_checkpoint
from ganglion.registry.stores.index import FileIndex, FileSummary
from ganglion.registry.stores.stored_models import Store, StoredModel
from ganglion.registry.stores.walk import SUFFIX, FolderWalk, FoundFile, ModelFiles, group_files

_SNAPSHOT_DEPTH: Final = 4
_PREFIX: Final = "models--"


def snapshot_models(walk: FolderWalk) -> Iterator[ModelFiles]:
    """The models of every repository."""
    for repository in walk.folders(walk.root):
        if repository.name.startswith(_PREFIX):
            hub_id = repository.name.removeprefix(_PREFIX).replace("--", "/", 1)
            yield from _in_repository(walk, Path(repository.path), hub_id)


def _in_repository(walk: FolderWalk, repository: Path, hub_id: str) -> Iterator[ModelFiles]:
    """Each file once, and the checkpoint: of the revision that `main` is, else of the newest that has it."""
    seen: set[str] = set()
    for revision in _revisions(walk, repository):
        checkpoint = None if "" in seen else snapshot_checkpoint(walk, revision, hub_id)
        if checkpoint is not None:
            seen.add("")
            yield checkpoint
        for candidate in group_files(walk.files(revision, SUFFIX, _SNAPSHOT_DEPTH), hub_id):
            place = candidate.files[0].path.removeprefix(revision)
            if place not in seen:
                seen.add(place)
                yield candidate


def _revisions(walk: FolderWalk, repository: Path) -> list[str]:
    main = _main_revision(walk, str(repository / "refs"))

    def rank(entry: os.DirEntry[str]) -> tuple[bool, float]:
        try:
            return entry.name == main, entry.stat().st_mtime
        except OSError:
            return False, 0.0

    snapshots = walk.folders(str(repository / "snapshots"))
    return [entry.path for entry in sorted(snapshots, key=rank, reverse=True)]


def _main_revision(walk: FolderWalk, references: str) -> str:
    files = (walk.file(references, entry) for entry in walk.entries(references) if entry.name == "main")
    reference = next(files, None)
    try:
        content = Path(reference.path).read_bytes() if reference and reference.status.st_size < 256 else b""
    except OSError:
        return ""
    return content.decode(errors="replace").strip()


_MANIFEST_LIMIT: Final = 1 << 20
_REGISTRY: Final = "registry.ollama.ai"
_LIBRARY: Final = "library"
_HUBS: Final = frozenset({"hf.co", "huggingface.co"})
_MODEL_LAYER: Final = "application/vnd.ollama.image.model"
_PROJECTOR_LAYER: Final = "application/vnd.ollama.image.projector"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class _Layer(Struct, frozen=True):
    media_type: str = msgspec.field(default="", name="mediaType")
    digest: str = ""


class _Manifest(Struct, frozen=True):
    layers: tuple[_Layer, ...] = ()


def ollama_models(walk: FolderWalk) -> Iterator[ModelFiles]:
    """Every tag whose weights are here; several may name the same blob."""
    root = Path(walk.root)
    blobs = _blobs(walk, str(root / "blobs"))
    for host in walk.folders(str(root / "manifests")):
        for namespace in walk.folders(host.path):
            for model in walk.folders(namespace.path):
                for tag in walk.entries(model.path):
                    manifest = walk.file(model.path, tag)
                    named = _blob_names(manifest) if manifest is not None else {}
                    blob = blobs.get(named.get(_MODEL_LAYER, ""))
                    if blob is not None:
                        name = f"{_called(host.name, namespace.name, model.name)}:{tag.name}"
                        hub_id = f"{namespace.name}/{model.name}" if host.name in _HUBS else None
                        projector = blobs.get(named.get(_PROJECTOR_LAYER, ""))
                        yield ModelFiles(name, (blob,), hub_id, projector=projector)


def _called(host: str, namespace: str, model: str) -> str:
    """The name that Ollama itself shows: what is usual is left out."""
    if host != _REGISTRY:
        return f"{host}/{namespace}/{model}"
    return model if namespace == _LIBRARY else f"{namespace}/{model}"


def _blobs(walk: FolderWalk, folder: str) -> dict[str, FoundFile]:
    files = (walk.file(folder, entry) for entry in walk.entries(folder))
    return {file.name: file for file in files if file is not None}


def _blob_names(manifest: FoundFile) -> dict[str, str]:
    """The files that the manifest names, by what they are; of several of a kind the first."""
    if manifest.status.st_size > _MANIFEST_LIMIT:
        return {}
    try:
        with Path(manifest.path).open("rb") as file:
            layers = msgspec.json.decode(file.read(_MANIFEST_LIMIT), type=_Manifest).layers
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    named: dict[str, str] = {}
    for layer in layers:
        if _DIGEST.fullmatch(layer.digest):
            named.setdefault(layer.media_type, layer.digest.replace(":", "-"))
    return named


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
            read = _model if candidate.folder is None else _checkpoint
            model = None if key in found else read(candidate, root.store, known)
            if model is not None:
                found[key] = model
    known.save()
    return tuple(found.values())


def _plain(walk: FolderWalk) -> Iterator[ModelFiles]:
    yield from group_files(walk.files(walk.root, SUFFIX, _DEPTH))
    yield from checkpoints(walk, walk.root, _DEPTH)


def _lm_studio(walk: FolderWalk) -> Iterator[ModelFiles]:
    """`publisher/repo/file.gguf`, or a checkpoint in `publisher/repo`."""
    yield from group_files(walk.files(walk.root, SUFFIX, 0))
    for publisher in walk.folders(walk.root):
        yield from group_files(walk.files(publisher.path, SUFFIX, 0))
        for repository in walk.folders(publisher.path):
            hub_id = f"{publisher.name}/{repository.name}"
            yield from group_files(walk.files(repository.path, SUFFIX, _DEPTH), hub_id)
            entries = walk.entries(repository.path)
            checkpoint = checkpoint_in(walk, repository.path, entries, repository.name, hub_id)
            if checkpoint is not None:
                yield checkpoint


_LAYOUTS: Final[Mapping[Store, Callable[[FolderWalk], Iterator[ModelFiles]]]] = {
    "models folder": _plain,
    "folder": _plain,
    "Hugging Face cache": snapshot_models,
    "LM Studio": _lm_studio,
    "Ollama": ollama_models,
}


def _model(candidate: ModelFiles, store: Store, known: FileIndex) -> StoredModel | None:
    """The candidate with what its headers say; None for what stands beside models, and what is gone."""
    first, *others = candidate.files
    summary = known.summary(first.path, first.status)
    if summary is None or not summary.is_model:
        return None
    path = _path(first)
    projector = candidate.projector
    beside = None if projector is None else known.summary(projector.path, projector.status)
    senses = () if beside is None else beside.capabilities
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
        capabilities=with_senses(summary.capabilities, senses),
        projector=_path(projector) if projector is not None and senses else None,
        hub_id=candidate.hub_id,
        error=candidate.error or _disagreement(path, summary, 1, len(candidate.files)),
    )
    for number, other in enumerate(others, start=2):
        model = _with_part(
            model, other, known.summary(other.path, other.status), number, len(candidate.files)
        )
    return model


def _checkpoint(candidate: ModelFiles, store: Store, known: FileIndex) -> StoredModel | None:
    """The checkpoint with what its files say; one that is incomplete is not read further."""
    assert candidate.folder is not None
    model = StoredModel(
        name=candidate.name,
        path=Path(candidate.folder),
        files=tuple(map(_path, candidate.files)),
        store=store,
        size_bytes=sum(file.status.st_size for file in candidate.files if is_weights(file.name)),
        hub_id=candidate.hub_id,
        error=candidate.error,
        format="safetensors",
    )
    summary = None if candidate.error else known.checkpoint(candidate.folder, candidate.files)
    if summary is None:
        return model if candidate.error else None
    return replace(
        model,
        architecture=summary.architecture,
        quantisation=summary.quantisation,
        parameters=summary.parameters,
        context_length=summary.context_length,
        capabilities=summary.capabilities,
        error=summary.error,
    )


def _path(file: FoundFile) -> Path:
    """The path by which files are compared; where no link is, the walk's own is that already."""
    is_own = not file.is_link or is_weights(file.name)
    return Path(file.path) if is_own else real_file(Path(file.path))


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
        self,
        home: Path,
        environment: Mapping[str, str],
        *,
        folders: Sequence[Path],
        may_download: bool,
        formats: tuple[Format, ...] = FORMATS,
    ) -> None:
        """`formats` is the order of preference where a name leaves the format open."""
        self._home = home
        self._formats = formats
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
                    manifest=self.manifest(),
                    stored=self._stored(),
                    may_download=self._may_download,
                    formats=self._formats,
                )
                self._read_s = time.monotonic()
            return self._catalogue

    def _stored(self) -> tuple[StoredModel, ...]:
        if self._index is None:
            self._index = FileIndex(self._home / "cache")
        return scan_stores(self._roots, self._index)
