"""The Hugging Face checkpoints in a folder of a store.

Law: a checkpoint is listed only where all that it would be read from lies inside the store's root.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ganglion.registry.files.checkpoint_files import CheckpointFiles, checkpoint_of, is_beside, is_weights
from ganglion.registry.stores.walk import FolderWalk, FoundFile, ModelFiles

_UNDER_WAY: Final = ".incomplete"
"""How the Hugging Face cache calls the blob of a download that is not done."""


def checkpoints(walk: FolderWalk, folder: str, depth: int) -> Iterator[ModelFiles]:
    """The checkpoints in a folder and so many levels under it, each called like its folder.

    What lies inside one belongs to it: the modules of an embedding model are no models of their own.
    """
    inside = ""
    for inner, entries in walk.tree(folder, depth):
        if inside and inner.startswith(inside):
            continue
        found = checkpoint_in(walk, inner, entries, Path(inner).name)
        if found is not None:
            inside = inner + os.sep
            yield found


def snapshot_checkpoint(walk: FolderWalk, snapshot: str, hub_id: str) -> ModelFiles | None:
    """The checkpoint in a snapshot of the Hugging Face cache, called like its repository."""
    entries = walk.entries(snapshot)
    blobs = walk.entries(str(Path(snapshot).parent.parent / "blobs"))
    is_under_way = any(entry.name.endswith(_UNDER_WAY) for entry in blobs)
    return checkpoint_in(
        walk, snapshot, entries, hub_id.rpartition("/")[2], hub_id, is_under_way=is_under_way
    )


def checkpoint_in(
    walk: FolderWalk,
    folder: str,
    entries: Iterable[os.DirEntry[str]],
    name: str,
    hub_id: str | None = None,
    *,
    is_under_way: bool = False,
) -> ModelFiles | None:
    """The checkpoint whose files are these entries; None where there is none, or some of it lies outside."""
    wanted = {entry.name: entry for entry in entries if is_beside(entry.name) or is_weights(entry.name)}
    described = checkpoint_of(wanted)
    if described is None and not (is_under_way and "config.json" in wanted):
        return None
    found = {entry.name: walk.file(folder, entry) for entry in wanted.values()}
    if any(file is None and _exists(wanted[name]) for name, file in found.items()):
        return None
    files = tuple(file for file in found.values() if file is not None)
    if not any(file.name == "config.json" for file in files):
        return None
    return ModelFiles(name, files, hub_id, _error(folder, described, found), folder)


def _exists(entry: os.DirEntry[str]) -> bool:
    """Whether an entry leads anywhere: a link to a blob that is gone is a hole, not a way out."""
    return Path(entry.path).exists()


def _error(folder: str, described: CheckpointFiles | None, found: dict[str, FoundFile | None]) -> str | None:
    gone = next((name for name, file in found.items() if file is None), None)
    if described is None:
        return f"{folder} is incomplete: its weights are not here yet."
    missing = described.missing or gone
    return None if missing is None else f"{folder} is incomplete: it lacks {missing}."
