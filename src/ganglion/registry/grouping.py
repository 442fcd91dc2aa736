"""Files put together to models by their names, before anything is read from them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ganglion.registry.parts import Part, part_of
from ganglion.registry.walk import FoundFile

SUFFIX: Final = ".gguf"
_PROJECTOR: Final = "mmproj"


@dataclass(frozen=True, slots=True)
class Grouped:
    """What may be one model: its files in order, as many as are there."""

    name: str
    files: tuple[FoundFile, ...]
    hub_id: str | None = None
    error: str | None = None


def grouped(files: Iterable[FoundFile], hub_id: str | None = None) -> Iterator[Grouped]:
    """Whole files as they come, then split ones; a projector, and parts without their first, are none."""
    split: dict[tuple[str, str, int], dict[int, FoundFile]] = {}
    for file in files:
        if _PROJECTOR in file.name.lower():
            continue
        part = part_of(file.name)
        if part is None:
            yield Grouped(file.name[: -len(SUFFIX)], (file,), hub_id)
        else:
            split.setdefault((file.folder, part.stem, part.count), {})[part.number] = file
    for (_, stem, count), parts in split.items():
        if 1 in parts:
            yield _joined(Part(stem, 1, count, SUFFIX), parts, hub_id)


def _joined(first: Part, parts: dict[int, FoundFile], hub_id: str | None) -> Grouped:
    missing = next((number for number in range(1, first.count + 1) if number not in parts), None)
    error = None
    if missing is not None:
        error = f"{parts[1].path} lacks {first.names()[missing - 1]}, part {missing} of {first.count}."
    return Grouped(first.stem, tuple(parts[number] for number in sorted(parts)), hub_id, error)
