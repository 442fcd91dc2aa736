"""A model on disk, whatever its format: a GGUF file, or the folder of a Hugging Face checkpoint."""

from pathlib import Path

from ganglion.core.model import ModelFacts
from ganglion.registry.files import gguf, safetensors
from ganglion.registry.files.checkpoint_files import SUFFIX
from ganglion.registry.files.formats import Format
from ganglion.registry.files.parts import parts_of


def format_of(path: Path) -> Format:
    """The format of a model by where it lies: a folder is a checkpoint, any other path a file."""
    return "safetensors" if path.suffix == SUFFIX or path.is_dir() else "gguf"


def read_model_facts(path: Path) -> ModelFacts:
    """The facts of a model, over all its files; raises ModelNotFound or LoadFailed."""
    return safetensors.read_facts(path) if format_of(path) == "safetensors" else gguf.read_facts(path)


def files_of(path: Path) -> tuple[Path, ...]:
    """All files of the model, of which some may be missing; of a checkpoint also those beside the weights."""
    if format_of(path) == "safetensors":
        return safetensors.checkpoint_paths(path) if path.is_dir() else parts_of(path)
    return parts_of(path)
