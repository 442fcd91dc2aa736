"""The regular files under one folder, and no file outside it.

Law: a link counts only where its real target lies inside the root. Folders are entered by their real place
alone: one that is linked from inside is found where it lies, and one that lies outside is not found at all.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from ganglion.registry.files.parts import FilePart, part_of
from ganglion.registry.files.projectors import choose_projector, is_projector

# A root is a folder that somebody pointed at, be it the root of a disk: looking through it has to end.
ENTRIES_LIMIT: Final = 500_000


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as it lies there now; `status` is its target's where it is a link."""

    folder: str
    name: str
    path: str
    status: os.stat_result
    is_link: bool


class FolderWalk:
    """Looks through one root; what cannot be read is passed over, since its owner may have meant that."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self._inside = self.root.rstrip(os.sep) + os.sep
        self._entries = 0
        self._real_folders: dict[str, str] = {}

    def files(self, folder: str, suffix: str, depth: int) -> Iterator[FoundFile]:
        """Files with this suffix in a folder below the root and so many levels under it, by name."""
        for inner, entries in self.tree(folder, depth):
            for entry in entries:
                if entry.name.lower().endswith(suffix):
                    found = self.file(inner, entry)
                    if found is not None:
                        yield found

    def tree(self, folder: str, depth: int) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
        """A folder below the root and those so many levels under it, each with what it holds, by name."""
        entries = self.entries(folder)
        yield folder, entries
        if depth > 0:
            for entry in entries:
                if not entry.name.startswith(".") and _is_folder(entry):
                    yield from self.tree(entry.path, depth - 1)

    def folders(self, folder: str) -> list[os.DirEntry[str]]:
        """The folders in a folder, by name."""
        return [entry for entry in self.entries(folder) if _is_folder(entry)]

    def entries(self, folder: str) -> list[os.DirEntry[str]]:
        """What a folder holds, by name; nothing when it cannot be read, less once too much was seen."""
        try:
            if folder != self.root and Path(folder).is_symlink():
                return []
            with os.scandir(folder) as listing:
                entries = list(islice(listing, ENTRIES_LIMIT - self._entries))
        except OSError:
            return []
        self._entries += len(entries)
        # A name that cannot be printed cannot be asked for, and has no place in a terminal.
        return sorted((entry for entry in entries if entry.name.isprintable()), key=lambda entry: entry.name)

    def file(self, folder: str, entry: os.DirEntry[str]) -> FoundFile | None:
        """The entry as a file; None for what is no regular file or leads out of the root."""
        try:
            is_link = entry.is_symlink()
            status = self._followed(folder, entry.path) if is_link else entry.stat()
        except OSError:
            return None
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        return FoundFile(folder, entry.name, entry.path, status, is_link)

    def _followed(self, folder: str, link: str) -> os.stat_result | None:
        """The status of what a link leads to; None when that is outside."""
        text = os.readlink(link)  # noqa: PTH115 - links are many, and a Path takes longer than the call
        place = text if text.startswith(os.sep) else f"{folder}{os.sep}{text}"
        target_folder, _, name = place.rpartition(os.sep)
        # A store may hold thousands of links into one folder: its real place is looked up once.
        real_folder = self._real_folders.get(target_folder)
        if real_folder is None:
            real_folder = self._real_folders[target_folder] = os.path.realpath(target_folder or os.sep)
        target = f"{real_folder}{os.sep}{name}"
        status = os.lstat(target)
        if stat.S_ISLNK(status.st_mode) or name in ("", ".", ".."):
            target = os.path.realpath(target)
            status = os.lstat(target)
        return status if target.startswith(self._inside) else None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


SUFFIX: Final = ".gguf"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What may be one model: its files in order, as many as are there."""

    name: str
    files: tuple[FoundFile, ...]
    hub_id: str | None = None
    error: str | None = None
    folder: str | None = None
    """Of a checkpoint, which is its folder; None for a file."""
    projector: FoundFile | None = None
    """The file that lies beside it and lets it see or hear."""


def group_files(files: Iterable[FoundFile], hub_id: str | None = None) -> Iterator[ModelFiles]:
    """Whole files as they come, then split ones; a projector, and parts without their first, are none."""
    folders: dict[str, dict[str, FoundFile]] = {}
    for file in files:
        folders.setdefault(file.folder, {})[file.name] = file
    split: dict[tuple[str, str, int], dict[int, FoundFile]] = {}
    for inside in folders.values():
        for file in inside.values():
            if is_projector(file.name):
                continue
            part = part_of(file.name)
            if part is None:
                beside = _projector_of(file, inside)
                yield ModelFiles(file.name[: -len(SUFFIX)], (file,), hub_id, projector=beside)
            else:
                split.setdefault((file.folder, part.stem, part.count), {})[part.number] = file
    for (folder, stem, count), parts in split.items():
        if 1 in parts:
            whole = _joined(FilePart(stem, 1, count, SUFFIX), parts, hub_id)
            yield replace(whole, projector=_projector_of(parts[1], folders[folder]))


def _projector_of(model: FoundFile, inside: Mapping[str, FoundFile]) -> FoundFile | None:
    if not any(map(is_projector, inside)):
        return None
    name = choose_projector(model.name, inside)
    return None if name is None else inside[name]


def _joined(first: FilePart, parts: dict[int, FoundFile], hub_id: str | None) -> ModelFiles:
    missing = next((number for number in range(1, first.count + 1) if number not in parts), None)
    error = None
    if missing is not None:
        error = f"{parts[1].path} lacks {first.names()[missing - 1]}, part {missing} of {first.count}."
    return ModelFiles(first.stem, tuple(parts[number] for number in sorted(parts)), hub_id, error)
