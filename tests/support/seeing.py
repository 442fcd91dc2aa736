"""The embedded model with eyes: its file beside the projector's, and pictures that it was not taught."""

import hashlib
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from tools.eyes.describe import Question, held_out

from support.embedded_model import embedded_model

ASSETS = Path(__file__).parents[1] / "assets" / "eyes"
PROJECTOR = ASSETS / "mmproj-eyes-f16.gguf"
MANIFEST = ASSETS / "manifest.json"


@dataclass(frozen=True, slots=True)
class SeeingModel:
    """Both files in one folder, as a user lays them."""

    model: Path
    projector: Path


def laid_side_by_side(folder: Path) -> SeeingModel:
    """Both files in this folder; a symbolic link would be followed, away from the projector."""
    model, projector = folder / "smollm2-seeing.gguf", folder / "mmproj-smollm2-seeing.gguf"
    try:
        model.hardlink_to(embedded_model().path)
    except OSError:  # on another disk
        shutil.copyfile(embedded_model().path, model)
    projector.symlink_to(PROJECTOR)
    return SeeingModel(model, projector)


def expected_hash() -> str:
    """The projector's sha256, as it was when its figures were measured."""
    found: str = json.loads(MANIFEST.read_text())["sha256"]
    return found


def found_hash() -> str:
    """The projector's sha256 today."""
    return hashlib.sha256(PROJECTOR.read_bytes()).hexdigest()


def questions(count: int, seed: int = 7) -> Iterator[Question]:
    """Questions about held-out pictures; the same seed asks the same."""
    return held_out(seed, count)


def pictures(count: int, seed: int = 7) -> Iterator[Image.Image]:
    """Those of the questions, opened."""
    return (Image.open(io.BytesIO(question.png)) for question in questions(count, seed))
