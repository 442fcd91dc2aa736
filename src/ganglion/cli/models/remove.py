"""`ganglion models rm`: give a downloaded model's disk space back.

Law: only what lies in Ganglion's own folders and in the Hugging Face cache is removed. Other programs'
stores, and files that somebody put elsewhere, are theirs.
"""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ganglion.cli.flags import ConfigFile
from ganglion.cli.models.local_models import LocalContext, ModelName
from ganglion.cli.terminal.console import say, say_warning
from ganglion.registry.files.receipts import Receipts, locked
from ganglion.registry.hub.cache import is_commit

if TYPE_CHECKING:
    from ganglion.core.errors import GanglionError
    from ganglion.registry.naming.resolver import Resolution
    from ganglion.registry.stores.stored_models import StoredModel


def _remove_from_folder(file: Path, receipts: Receipts) -> int:
    """Remove one file, or the link to one; gives how many bytes that freed."""
    receipts.forget(file)
    freed_bytes = _freed_bytes(file)
    file.unlink()
    return freed_bytes


def _remove_from_cache(file: Path, receipts: Receipts) -> int:
    """Remove a name in a snapshot, and its blob unless another name uses it; gives the bytes freed."""
    snapshot = next(folder for folder in file.parents if folder.parent.name == "snapshots")
    repository = snapshot.parent.parent
    blob = Path(os.path.realpath(file))
    if not file.is_symlink() or blob.parent != repository / "blobs":
        freed_bytes = _remove_from_folder(file, receipts)
    else:
        # The lock that downloads take: none may link this blob anew while it goes.
        with locked(repository.parent / ".locks" / repository.name / f"{blob.name}.lock"):
            file.unlink()
            freed_bytes = 0 if _is_used(repository, blob) else _remove_from_folder(blob, receipts)
    _tidy(file.parent, snapshot, repository)
    return freed_bytes


def _freed_bytes(file: Path) -> int:
    status = file.lstat()
    return status.st_size if not file.is_symlink() and status.st_nlink == 1 else 0


def _is_used(repository: Path, blob: Path) -> bool:
    names = (repository / "snapshots").rglob("*")
    return any(name.is_symlink() and Path(os.path.realpath(name)) == blob for name in names)


def _tidy(folder: Path, snapshot: Path, repository: Path) -> None:
    """Remove folders that are empty now, and the references to a commit of which nothing is left."""
    with suppress(OSError):
        while folder != repository:
            folder.rmdir()
            folder = folder.parent
    if snapshot.exists():
        return
    for reference in (repository / "refs").rglob("*"):
        with suppress(OSError, UnicodeDecodeError):
            commit = reference.read_text().strip()
            if is_commit(commit) and commit == snapshot.name:
                reference.unlink()
    # From the inside out, and each only if it is empty: partial downloads and other files stay.
    with suppress(OSError):
        for inner in sorted((repository / "refs").rglob("*"), reverse=True):
            inner.rmdir()
        (repository / "refs").rmdir()
    for inner in (repository / "blobs", repository):
        with suppress(OSError):
            inner.rmdir()


@dataclass(frozen=True, slots=True)
class _PendingRemoval:
    """What is to be removed."""

    id: str
    files: tuple[Path, ...]
    size_bytes: int
    place: Literal["folder", "Hugging Face cache"]
    copy: Path | None = None
    """What was converted from a checkpoint."""
    folder: Path | None = None
    """Of a checkpoint; it goes with its last file."""


def rm(
    name: ModelName,
    /,
    *,
    yes: Annotated[bool, Parameter(alias="-y", help="Remove without asking.", negative=())] = False,
    config: ConfigFile = None,
) -> int:
    """Remove a downloaded model from this machine."""
    from ganglion.cli.terminal.format import size_words

    local = LocalContext.read(config)
    resolution = local.resolve(name)
    removal = _pending(name, resolution, local)
    if not yes and not _is_confirmed(removal):
        say("nothing was removed")
        return 1
    freed_bytes = _remove(removal, local)
    say(f"removed {removal.id}, {size_words(freed_bytes)} freed")
    if freed_bytes < removal.size_bytes:
        say(f"{size_words(removal.size_bytes - freed_bytes)} stay: other names of the same file use them")
    if resolution.entry is not None:
        say_warning(f"models.yaml still names {resolution.entry.key}")
    return 0


def _pending(name: str, resolution: "Resolution", local: LocalContext) -> _PendingRemoval:
    """The files of a model, if they are ours to remove; raises NotAllowed, InvalidValue, ModelNotFound."""
    from ganglion.core.errors import InvalidValue, ModelNotFound
    from ganglion.engines.table import DEFAULT_ENGINE
    from ganglion.registry.naming.resolver import EmbeddedSource, LocalFileSource

    source = resolution.source
    if isinstance(source, EmbeddedSource):
        return _embedded(resolution.id, local)
    if not isinstance(source, LocalFileSource):
        raise ModelNotFound(name, hint="It would have to be downloaded; there is nothing to remove.")
    stored = local.catalogue.stored_index.by_path.get(source.path)
    if stored is None or stored.store not in ("models folder", "Hugging Face cache"):
        raise _not_ours(source.path, stored)
    if not _is_exact(name, resolution, stored, local):
        raise InvalidValue(
            f"{name!r} means {resolution.id} here, and only an exact name is removed.",
            hint=f"ganglion models rm {resolution.id}",
        )
    place: Literal["folder", "Hugging Face cache"] = (
        "folder" if stored.store == "models folder" else "Hugging Face cache"
    )
    if stored.format == "gguf":
        return _PendingRemoval(resolution.id, stored.files, stored.size_bytes, place)
    copy = local.builds.conversion(stored.path, DEFAULT_ENGINE).target
    return _PendingRemoval(resolution.id, stored.files, stored.size_bytes, place, copy, stored.path)


def _embedded(model_id: str, local: LocalContext) -> _PendingRemoval:
    from ganglion.core.errors import ModelNotFound, NotAllowed
    from ganglion.registry.hub.embedded import SMOLLM2

    found = local.embedded
    if found is None:
        raise ModelNotFound(model_id, hint="It is not on this machine; there is nothing to remove.")
    if found.path.parent != local.home / "cache":
        raise NotAllowed(
            f"{model_id} belongs to {found.origin}.", hint=f"pip uninstall {SMOLLM2.distribution}"
        )
    return _PendingRemoval(model_id, (found.path,), found.path.stat().st_size, "folder")


def _not_ours(path: Path, stored: "StoredModel | None") -> "GanglionError":
    from ganglion.core.errors import NotAllowed

    store = None if stored is None else stored.store
    if stored is not None and store == "Ollama":
        return NotAllowed(f"{stored.name} belongs to Ollama.", hint=f"ollama rm {stored.name}")
    if store == "LM Studio":
        return NotAllowed(f"{path} belongs to LM Studio.", hint="Delete it in LM Studio, under My Models.")
    return NotAllowed(
        f"{path} lies outside Ganglion's models folder, where nothing is removed.",
        hint="It is yours: remove the file yourself.",
    )


def _is_exact(name: str, resolution: "Resolution", stored: "StoredModel", local: LocalContext) -> bool:
    """Whether the name can mean no other file, now or when a neighbour is gone."""
    from ganglion.registry.naming.names import fold, operator_path

    if operator_path(name) is not None:
        return True
    names = {resolution.id, stored.name, *resolution.aliases}
    if stored.hub_id is not None:
        tag = stored.quantisation if stored.format == "gguf" else stored.format
        names.add(f"{stored.hub_id}:{tag}")
        if len(local.catalogue.stored_index.by_hub_id[fold(stored.hub_id)]) == 1:
            names.add(stored.hub_id)
    return fold(name).removesuffix(".gguf") in map(fold, names)


def _is_confirmed(removal: _PendingRemoval) -> bool:
    from ganglion.cli.terminal.format import size_words
    from ganglion.core.errors import MissingParameter

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise MissingParameter(
            f"Nobody is here to say whether {removal.id} shall be removed.",
            param="yes",
            hint="--yes removes it without asking.",
        )
    for file in removal.files:
        say(f"  {file}")
    sys.stderr.write(f"Remove {removal.id}, {size_words(removal.size_bytes)}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def _remove(removal: _PendingRemoval, local: LocalContext) -> int:
    """Gives how many bytes were freed; raises LoadFailed when a file cannot be removed."""
    from ganglion.core.errors import LoadFailed

    remove = _remove_from_folder if removal.place == "folder" else _remove_from_cache
    try:
        freed_bytes = sum(remove(file, local.hub.receipts) for file in removal.files)
        if removal.copy is not None and removal.copy.is_file():
            freed_bytes += _remove_from_folder(removal.copy, local.hub.receipts)
        if removal.folder is not None and removal.place == "folder":
            with suppress(OSError):  # what else lies in it is not ours
                removal.folder.rmdir()
        return freed_bytes
    except OSError as error:
        raise LoadFailed(
            f"{error.filename or removal.id} could not be removed: {error.strerror or error}."
        ) from error
