"""Which file a name means: a path, the embedded model, or a file in the models folder."""

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ganglion.core.errors import ModelNotFound
from ganglion.registry.embedded import SMOLLM2, EmbeddedModel


@dataclass(frozen=True, slots=True)
class FileNamed:
    """The name means this file."""

    path: Path
    id: str
    origin: Literal["path", "models folder"]


@dataclass(frozen=True, slots=True)
class EmbeddedNamed:
    """The name means the embedded model, wherever its file lies."""

    model: EmbeddedModel


Resolution = FileNamed | EmbeddedNamed


def resolve(name: str, models: Mapping[str, Path]) -> Resolution:
    """What a MODEL argument means, given the files in the models folder; raises ModelNotFound."""
    if is_path(name):
        path = Path(name).expanduser()
        return FileNamed(path, path.stem, "path")
    wanted = name.casefold()
    for stem, path in models.items():
        if stem.casefold() == wanted:
            return FileNamed(path, path.stem, "models folder")
    if wanted in (SMOLLM2.id, *SMOLLM2.names):
        return EmbeddedNamed(SMOLLM2)
    raise ModelNotFound(name, hint=what_is_here(name, [SMOLLM2.id, *models]))


def models_in(folder: Path) -> dict[str, Path]:
    """GGUF files in the models folder and its subfolders, by stem."""
    try:
        files = sorted([*folder.glob("*.gguf"), *folder.glob("*/*.gguf")])
    except OSError:
        return {}
    return {file.stem: file for file in files}


def is_path(name: str) -> bool:
    """Whether an argument is meant as a file and not as a name."""
    separators = (os.sep, os.altsep) if os.altsep else (os.sep,)
    is_written_as_path = any(separator in name for separator in separators) or name.endswith(".gguf")
    return is_written_as_path or Path(name).is_file()


def what_is_here(wanted: str, names: Iterable[str]) -> str:
    """A hint that lists what could have been meant, the nearest name first."""
    here = list(dict.fromkeys(names))
    if not here:
        return "No model is here yet."
    nearest = difflib.get_close_matches(wanted.casefold(), here, n=1, cutoff=0.5)
    listed = f"Here: {', '.join(here[:10])}{', …' if len(here) > 10 else ''}."
    return f"Did you mean {nearest[0]}? {listed}" if nearest else listed
