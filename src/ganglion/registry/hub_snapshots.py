"""Hugging Face's cache: `models--org--repo/snapshots/REVISION/file.gguf`, links into a folder of blobs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ganglion.registry.grouping import SUFFIX, Grouped, grouped
from ganglion.registry.walk import Walk

DEPTH: Final = 4
_PREFIX: Final = "models--"


def candidates(walk: Walk) -> Iterator[Grouped]:
    """The models of every repository."""
    for repository in walk.folders(walk.root):
        if repository.name.startswith(_PREFIX):
            hub_id = repository.name.removeprefix(_PREFIX).replace("--", "/", 1)
            yield from _in_repository(walk, Path(repository.path), hub_id)


def _in_repository(walk: Walk, repository: Path, hub_id: str) -> Iterator[Grouped]:
    """Each file once: of the revision that `main` is, else of the newest that has it."""
    seen: set[str] = set()
    for revision in _revisions(walk, repository):
        for candidate in grouped(walk.files(revision, SUFFIX, DEPTH), hub_id):
            place = candidate.files[0].path.removeprefix(revision)
            if place not in seen:
                seen.add(place)
                yield candidate


def _revisions(walk: Walk, repository: Path) -> list[str]:
    main = _main_revision(walk, str(repository / "refs"))

    def rank(entry: os.DirEntry[str]) -> tuple[bool, float]:
        try:
            return entry.name == main, entry.stat().st_mtime
        except OSError:
            return False, 0.0

    snapshots = walk.folders(str(repository / "snapshots"))
    return [entry.path for entry in sorted(snapshots, key=rank, reverse=True)]


def _main_revision(walk: Walk, references: str) -> str:
    files = (walk.file(references, entry) for entry in walk.entries(references) if entry.name == "main")
    reference = next(files, None)
    try:
        content = Path(reference.path).read_bytes() if reference and reference.status.st_size < 256 else b""
    except OSError:
        return ""
    return content.decode(errors="replace").strip()
