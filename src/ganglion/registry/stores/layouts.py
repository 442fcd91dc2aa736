"""Ollama's store: `manifests/HOST/NAMESPACE/NAME/TAG` says which of `blobs` are a model's weights."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

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
    """Each file once: of the revision that `main` is, else of the newest that has it."""
    seen: set[str] = set()
    for revision in _revisions(walk, repository):
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
                    blob = blobs.get(_blob_name(manifest)) if manifest is not None else None
                    if blob is not None:
                        name = f"{_called(host.name, namespace.name, model.name)}:{tag.name}"
                        hub_id = f"{namespace.name}/{model.name}" if host.name in _HUBS else None
                        yield ModelFiles(name, (blob,), hub_id)


def _called(host: str, namespace: str, model: str) -> str:
    """The name that Ollama itself shows: what is usual is left out."""
    if host != _REGISTRY:
        return f"{host}/{namespace}/{model}"
    return model if namespace == _LIBRARY else f"{namespace}/{model}"


def _blobs(walk: FolderWalk, folder: str) -> dict[str, FoundFile]:
    files = (walk.file(folder, entry) for entry in walk.entries(folder))
    return {file.name: file for file in files if file is not None}


def _blob_name(manifest: FoundFile) -> str:
    """The file of the manifest's weights; empty when it names none."""
    if manifest.status.st_size > _MANIFEST_LIMIT:
        return ""
    try:
        with Path(manifest.path).open("rb") as file:
            layers = msgspec.json.decode(file.read(_MANIFEST_LIMIT), type=_Manifest).layers
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    digests = [layer.digest for layer in layers if layer.media_type == _MODEL_LAYER]
    return next((digest.replace(":", "-") for digest in digests if _DIGEST.fullmatch(digest)), "")
