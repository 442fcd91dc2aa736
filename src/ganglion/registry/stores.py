"""The models that this machine already has: in Ganglion's folder, other programs' stores and plain folders.

Law: stores are read and never written, and what lies outside a store's root is not listed, whatever leads
there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ganglion.registry import hub_snapshots, ollama
from ganglion.registry.grouping import SUFFIX, Grouped, grouped
from ganglion.registry.hub_environment import cache_folder, expanded, user_home
from ganglion.registry.index import Glance, Index
from ganglion.registry.names import real_file
from ganglion.registry.stored import Store, StoredModel
from ganglion.registry.walk import FoundFile, Walk

# People sort files by maker, family and size; nobody sorts them eight folders deep.
DEPTH: Final = 8
_SYSTEM_OLLAMA: Final = Path("/usr/share/ollama/.ollama/models")


@dataclass(frozen=True, slots=True)
class Root:
    """A folder to look into, and how what lies there is laid out."""

    store: Store
    path: Path


def roots(home: Path, environment: Mapping[str, str], extra: Sequence[Path]) -> tuple[Root, ...]:
    """Where models may lie, there or not: Ganglion's folder first, then the operator's, then other stores."""
    user = user_home(environment)
    ollama_models = environment.get("OLLAMA_MODELS")
    found = [
        Root("models folder", home / "models"),
        *(Root("folder", folder) for folder in extra),
        Root("Hugging Face cache", cache_folder(environment)),
        Root("LM Studio", user / ".lmstudio" / "models"),
        Root("LM Studio", user / ".cache" / "lm-studio" / "models"),
    ]
    if ollama_models:
        found.append(Root("Ollama", expanded(ollama_models, environment)))
    else:
        found += [Root("Ollama", user / ".ollama" / "models"), Root("Ollama", _SYSTEM_OLLAMA)]
    return tuple(dict.fromkeys(found))


def scan(roots: Iterable[Root], known: Index) -> tuple[StoredModel, ...]:
    """Every model in these places, in their order; only headers that `known` lacks are read, and kept there.

    One file under one name is listed once, where it was found first. Blocks for as long as the disk takes.
    """
    found: dict[tuple[str, int, int], StoredModel] = {}
    for root in roots:
        for candidate in _LAYOUTS[root.store](Walk(root.path)):
            status = candidate.files[0].status
            key = (candidate.name, status.st_dev, status.st_ino)
            model = None if key in found else _model(candidate, root.store, known)
            if model is not None:
                found[key] = model
    known.save()
    return tuple(found.values())


def _plain(walk: Walk) -> Iterator[Grouped]:
    return grouped(walk.files(walk.root, SUFFIX, DEPTH))


def _lm_studio(walk: Walk) -> Iterator[Grouped]:
    """`publisher/repo/file.gguf`."""
    yield from grouped(walk.files(walk.root, SUFFIX, 0))
    for publisher in walk.folders(walk.root):
        yield from grouped(walk.files(publisher.path, SUFFIX, 0))
        for repository in walk.folders(publisher.path):
            files = walk.files(repository.path, SUFFIX, DEPTH)
            yield from grouped(files, f"{publisher.name}/{repository.name}")


_LAYOUTS: Final[Mapping[Store, Callable[[Walk], Iterator[Grouped]]]] = {
    "models folder": _plain,
    "folder": _plain,
    "Hugging Face cache": hub_snapshots.candidates,
    "LM Studio": _lm_studio,
    "Ollama": ollama.candidates,
}


def _model(candidate: Grouped, store: Store, known: Index) -> StoredModel | None:
    """The candidate with what its headers say; None for what stands beside models, and what is gone."""
    first, *others = candidate.files
    glance = known.glance(first.path, first.status)
    if glance is None or not glance.is_model:
        return None
    path = _path(first)
    model = StoredModel(
        name=candidate.name,
        path=path,
        files=(path,),
        store=store,
        size_bytes=first.status.st_size,
        architecture=glance.architecture,
        quantisation=glance.quantisation,
        parameters=glance.parameters,
        context_length=glance.context_length,
        capabilities=glance.capabilities,
        hub_id=candidate.hub_id,
        error=candidate.error or _disagreement(path, glance, 1, len(candidate.files)),
    )
    for number, other in enumerate(others, start=2):
        model = _with_part(model, other, known.glance(other.path, other.status), number, len(candidate.files))
    return model


def _path(file: FoundFile) -> Path:
    """The path by which files are compared; where no link is, the walk's own is that already."""
    return real_file(Path(file.path)) if file.is_link else Path(file.path)


def _with_part(
    model: StoredModel, file: FoundFile, glance: Glance | None, number: int, count: int
) -> StoredModel:
    path = _path(file)
    return replace(
        model,
        files=(*model.files, path),
        size_bytes=model.size_bytes + file.status.st_size,
        parameters=model.parameters + (0 if glance is None else glance.parameters),
        error=model.error or _disagreement(path, glance, number, count),
    )


def _disagreement(path: Path, glance: Glance | None, number: int, count: int) -> str | None:
    """Why the file cannot be the part that its name says."""
    if glance is None:
        return f"{path} is gone."
    if glance.error is not None:
        return glance.error
    if glance.number == number and glance.count == count:
        return None
    return f"{path} says it is part {glance.number} of {glance.count}, its name part {number} of {count}."
