"""The files that make up a Hugging Face checkpoint, told from all others in its repository or folder. Pure.

Law: weights are safetensors and nothing else. What unpickles (`*.bin`, `*.pt`), what is another program's
format (`*.onnx`, `original/`), and what is code (`*.py`) is no file of a checkpoint; code becomes one where
the operator trusts it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ganglion.registry.files.parts import part_of

SUFFIX: Final = ".safetensors"
CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"

_BESIDE: Final = frozenset(
    {
        CONFIG,
        INDEX,
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "config_sentence_transformers.json",
        "generation_config.json",
        "hf_quant_config.json",
        "image_processor_config.json",
        "merges.txt",
        "modules.json",
        "preprocessor_config.json",
        "processor_config.json",
        "quant_config.json",
        "quantize_config.json",
        "sentence_bert_config.json",
        "sentencepiece.bpe.model",
        "special_tokens_map.json",
        "spiece.model",
        "spm.model",
        "tekken.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "video_preprocessor_config.json",
        "vocab.json",
        "vocab.txt",
    }
)
_FURTHER: Final = re.compile(
    r"[\w.-]+\.tiktoken|additional_chat_templates/[\w.-]+\.jinja|\d+_\w+/(?:config\.json|model\.safetensors)",
    re.ASCII,
)
"""Tokenizers of some families, named templates, and the modules behind an embedding model."""
_CODE: Final = re.compile(r"[\w.-]+\.py", re.ASCII)
_OTHER_WEIGHTS: Final = ("consolidated", "adapter_")
"""Beginnings of safetensors files that are the same weights in another layout, or no model of their own."""
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The paths of one checkpoint, those that are read first in front."""

    beside: tuple[str, ...]
    """config.json, tokenizer, templates and the like."""
    weights: tuple[str, ...]
    missing: str | None = None
    """A part of the weights that should be there and is not."""
    code: tuple[str, ...] = ()
    """Python files beside it, which are no part of it unless they are trusted."""


def is_beside(path: str) -> bool:
    """Whether a path is one of the files that a checkpoint has beside its weights."""
    return path in _BESIDE or _FURTHER.fullmatch(path) is not None


def is_weights(path: str) -> bool:
    """Whether a path may be weights of the checkpoint, or a part of them."""
    return "/" not in path and path.endswith(SUFFIX) and not path.startswith(_OTHER_WEIGHTS)


def is_code(path: str) -> bool:
    """Whether a path is code that a checkpoint brings along."""
    return _CODE.fullmatch(path) is not None


def pickles(paths: Iterable[str]) -> list[str]:
    """Weights in files that run code when they are read."""
    return sorted(path for path in paths if "/" not in path and path.endswith(_PICKLES))


def checkpoint_of(paths: Iterable[str]) -> CheckpointFiles | None:
    """The checkpoint among these files; None where there is no config.json or no weights."""
    listed = sorted(set(paths))
    beside = [path for path in listed if is_beside(path)]
    weights, missing = _weights([path for path in listed if is_weights(path)], has_index=INDEX in beside)
    if CONFIG not in beside or not (weights or missing or INDEX in beside):
        return None
    beside.sort(key=lambda path: (path != CONFIG, path))
    if not weights and missing is None:
        missing = f"model{SUFFIX}"
    code = tuple(path for path in listed if is_code(path))
    return CheckpointFiles(tuple(beside), weights, missing, code)


def _weights(found: list[str], *, has_index: bool) -> tuple[tuple[str, ...], str | None]:
    """The files to read, in order, and the first one that is missing.

    An index speaks of a split model; without one `model.safetensors` is the model, whatever stands beside
    it. Where no name says it is a part, every file belongs to the model.
    """
    parts = [part for part in map(part_of, found) if part is not None]
    if f"model{SUFFIX}" in found and not (has_index and parts):
        return (f"model{SUFFIX}",), None
    if not parts:
        return tuple(found), None
    names = min(parts, key=lambda part: (part.stem != "model", part.stem, part.count)).names()
    here = tuple(name for name in names if name in found)
    return here, next((name for name in names if name not in found), None)
