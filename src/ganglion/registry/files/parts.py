"""The names of a model's parts: `model-00001-of-00003.gguf` and its siblings."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PARTS_LIMIT: Final = 9999
_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.[a-z]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class FilePart:
    """What a file's name says of its place in a model; numbers begin at 1."""

    stem: str
    number: int
    count: int
    suffix: str

    def names(self) -> tuple[str, ...]:
        """The file names of all parts, in order."""
        return tuple(
            f"{self.stem}-{number:05}-of-{self.count:05}{self.suffix}" for number in range(1, self.count + 1)
        )


def part_of(name: str) -> FilePart | None:
    """The part that a file name stands for; None for a file that is whole."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    number, count = int(match["number"]), int(match["count"])
    is_sensible = 1 <= number <= count <= PARTS_LIMIT and count > 1
    return FilePart(match["stem"], number, count, match["suffix"]) if is_sensible else None


def parts_of(path: Path) -> tuple[Path, ...]:
    """All files of the model that this file belongs to, there or not; itself when its name says no more."""
    part = part_of(path.name)
    return (path,) if part is None else tuple(path.with_name(name) for name in part.names())
