"""The concept packs that the operator named, each with the model it was made for."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.core.model import ModelFacts
from ganglion.registry.files.model_files import read_model_facts
from ganglion.registry.loading.candidate import Candidate

_logger = logging.getLogger("ganglion.cli")

SUFFIX: Final = ".safetensors"
FOLDER: Final = "concepts"
"""Where packs lie that are called by name, in the home folder."""
_MAX_PACKS: Final = 64
_IN_GGUF: Final = {
    "mistral": "llama",
    "gemma3_text": "gemma3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_neox": "gptneox",
    "cohere": "command-r",
}
"""Architectures of checkpoints that GGUF files, which packs are trained on, call otherwise."""


@dataclass(frozen=True, slots=True)
class FoundPack:
    """A pack by its file, and the model it was made for."""

    name: str
    path: Path
    architecture: str
    hidden_size: int
    block_count: int

    def fits(self, facts: ModelFacts) -> bool:
        """Whether its vectors live in a model's residual stream."""
        own = self.architecture, self.hidden_size, self.block_count
        architecture = _IN_GGUF.get(facts.architecture, facts.architecture)
        theirs = architecture, facts.embedding_length, facts.block_count
        return facts.can_generate and own == theirs


def is_path(name: str) -> bool:
    """Whether a file is meant, and not a name in the home folder."""
    return os.sep in name or name.startswith("~") or name.endswith(SUFFIX)


def pack_path(name: str, home: Path) -> Path:
    """Where the vectors lie that a file's path, or a name in the home folder, means."""
    return Path(name).expanduser().absolute() if is_path(name) else home / FOLDER / f"{name}{SUFFIX}"


def find_packs(names: Sequence[str], home: Path) -> tuple[FoundPack, ...]:
    """The packs that are named, their manifests read; raises for one that is not there or is none."""
    if len(names) > _MAX_PACKS:
        raise InvalidValue(
            f"{len(names)} concept packs were named, at most {_MAX_PACKS} can be.", param="concepts"
        )
    return tuple(_found(name, pack_path(name, home)) for name in dict.fromkeys(names))


def fitting(packs: Sequence[FoundPack], facts: ModelFacts, model_id: str) -> tuple[str, ...]:
    """The packs to load with a model; those made for another one are left out, which is said."""
    for pack in packs:
        if not pack.fits(facts):
            _logger.warning(
                "%s is loaded without the concept pack %s, made for another model", model_id, pack.name
            )
    return tuple(str(pack.path) for pack in packs if pack.fits(facts))


def refuse_if_one_fits_none(packs: Sequence[FoundPack], models: Sequence[Candidate]) -> None:
    """Raise for a pack that was made for none of some models, as far as all of them can be read."""
    known = [_facts(model) for model in models] if packs else []
    for pack in packs:
        if any(facts is None or pack.fits(facts) for facts in known):
            continue
        described = "; ".join(
            f"{model.id} is {facts.architecture}, {facts.embedding_length} wide, {facts.block_count} layers"
            for model, facts in zip(models, known, strict=True)
            if facts is not None
        )
        raise InvalidValue(
            f"The concept pack {pack.name!r} was made for another model ({pack.architecture}, "
            f"{pack.hidden_size} wide, {pack.block_count} layers): {described}.",
            param="concepts",
            hint="Name the model that it was made for, or train a pack for this one.",
        )


def _found(name: str, path: Path) -> FoundPack:
    from ganglion.engines.concepts.pack import read_manifest

    if not path.is_file():
        raise InvalidValue(
            f"There is no concept pack {name!r}: {path} is not there.",
            param="concepts",
            hint=f"--concepts takes a {SUFFIX} file, or the name of one in the home folder's {FOLDER}.",
        )
    manifest = read_manifest(path)
    model = manifest.model
    return FoundPack(manifest.name, path, model.architecture, model.hidden_size, model.block_count)


def _facts(model: Candidate) -> ModelFacts | None:
    try:
        return None if model.path is None else read_model_facts(model.path)
    except GanglionError:
        return None  # said when it is loaded
