"""`ganglion models rm`: give a downloaded model's disk space back.

Law: only what lies in Ganglion's own folders and in the Hugging Face cache is removed. Other programs'
stores, and files that somebody put elsewhere, are theirs.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ganglion.cli.models_here import ConfigFile, Here, Name
from ganglion.cli.talk import say, say_warning

if TYPE_CHECKING:
    from ganglion.core.errors import GanglionError
    from ganglion.registry.resolver import Resolution
    from ganglion.registry.stored import StoredModel


@dataclass(frozen=True, slots=True)
class Doomed:
    """What is to be removed."""

    id: str
    files: tuple[Path, ...]
    size_bytes: int
    place: Literal["folder", "Hugging Face cache"]


def rm(
    name: Name,
    /,
    *,
    yes: Annotated[bool, Parameter(alias="-y", help="Remove without asking.", negative=())] = False,
    config: ConfigFile = None,
) -> int:
    """Remove a downloaded model from this machine."""
    from ganglion.cli.words import size_words

    here = Here.read(config)
    resolution = here.meant(name)
    doomed = _doomed(name, resolution, here)
    if not yes and not _is_wanted(doomed):
        say("nothing was removed")
        return 1
    freed_bytes = _remove(doomed, here)
    say(f"removed {doomed.id}, {size_words(freed_bytes)} freed")
    if freed_bytes < doomed.size_bytes:
        say(f"{size_words(doomed.size_bytes - freed_bytes)} stay: other names of the same file use them")
    if resolution.entry is not None:
        say_warning(f"models.yaml still names {resolution.entry.key}")
    return 0


def _doomed(name: str, resolution: "Resolution", here: Here) -> Doomed:
    """The files of a model, if they are ours to remove; raises NotAllowed, InvalidValue, ModelNotFound."""
    from ganglion.core.errors import InvalidValue, ModelNotFound
    from ganglion.registry.resolver import EmbeddedSource, FileSource

    source = resolution.source
    if isinstance(source, EmbeddedSource):
        return _embedded(resolution.id, here)
    if not isinstance(source, FileSource):
        raise ModelNotFound(name, hint="It would have to be downloaded; there is nothing to remove.")
    stored = here.catalogue.shelf.by_path.get(source.path)
    if stored is None or stored.store not in ("models folder", "Hugging Face cache"):
        raise _not_ours(source.path, stored)
    if not _is_exact(name, resolution, stored, here):
        raise InvalidValue(
            f"{name!r} means {resolution.id} here, and only an exact name is removed.",
            hint=f"ganglion models rm {resolution.id}",
        )
    place: Literal["folder", "Hugging Face cache"] = (
        "folder" if stored.store == "models folder" else "Hugging Face cache"
    )
    return Doomed(resolution.id, stored.files, stored.size_bytes, place)


def _embedded(model_id: str, here: Here) -> Doomed:
    from ganglion.core.errors import ModelNotFound, NotAllowed
    from ganglion.registry.embedded import SMOLLM2

    found = here.embedded
    if found is None:
        raise ModelNotFound(model_id, hint="It is not on this machine; there is nothing to remove.")
    if found.path.parent != here.home / "cache":
        raise NotAllowed(
            f"{model_id} belongs to {found.origin}.", hint=f"pip uninstall {SMOLLM2.distribution}"
        )
    return Doomed(model_id, (found.path,), found.path.stat().st_size, "folder")


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


def _is_exact(name: str, resolution: "Resolution", stored: "StoredModel", here: Here) -> bool:
    """Whether the name can mean no other file, now or when a neighbour is gone."""
    from ganglion.registry.names import fold, operator_path

    if operator_path(name) is not None:
        return True
    names = {resolution.id, stored.name, *resolution.aliases}
    if stored.hub_id is not None:
        names.add(f"{stored.hub_id}:{stored.quantisation}")
        if len(here.catalogue.shelf.by_hub_id[fold(stored.hub_id)]) == 1:
            names.add(stored.hub_id)
    return fold(name).removesuffix(".gguf") in map(fold, names)


def _is_wanted(doomed: Doomed) -> bool:
    from ganglion.cli.words import size_words
    from ganglion.core.errors import MissingParameter

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise MissingParameter(
            f"Nobody is here to say whether {doomed.id} shall be removed.",
            param="yes",
            hint="--yes removes it without asking.",
        )
    for file in doomed.files:
        say(f"  {file}")
    sys.stderr.write(f"Remove {doomed.id}, {size_words(doomed.size_bytes)}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def _remove(doomed: Doomed, here: Here) -> int:
    """Gives how many bytes were freed; raises LoadFailed when a file cannot be removed."""
    from ganglion.cli.models_removal import remove_from_cache, remove_from_folder
    from ganglion.core.errors import LoadFailed

    remove = remove_from_folder if doomed.place == "folder" else remove_from_cache
    try:
        return sum(remove(file, here.hub.receipts) for file in doomed.files)
    except OSError as error:
        raise LoadFailed(
            f"{error.filename or doomed.id} could not be removed: {error.strerror or error}."
        ) from error
