"""Projector files: which one belongs to a model, and what a model can take with it.

Law: a projector is never a model of its own. One that lies beside a model is its own where its name names no
other model; where several are, the nearest name comes first, then the precision.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from ganglion.core.errors import GanglionError, LoadFailed
from ganglion.core.model import ModelFacts, ProjectorFacts
from ganglion.registry.files.gguf import read_file
from ganglion.registry.files.parts import part_of
from ganglion.registry.files.quantisation import quant_of

MARK: Final = "mmproj"
"""Stands in the name of every projector file that is found."""
NONE: Final = "none"
"""In place of a path: the model is loaded for text alone."""
_SUFFIX: Final = ".gguf"
_PRECISIONS: Final = ("F16", "BF16", "Q8_0", "F32")
_SAYS_NOTHING: Final = frozenset({MARK, "model", "projector", "vision", "gguf", "it", "instruct", "chat"})
_WORD: Final = re.compile(r"[a-z0-9.]+")


def is_projector(name: str) -> bool:
    """Whether a file is called as projectors are."""
    folded = name.casefold()
    return MARK in folded and folded.endswith(_SUFFIX)


def choose_projector(model: str, names: Iterable[str]) -> str | None:
    """Of the files in a model's folder the projector that belongs to it."""
    files = tuple(names)
    own = _words(model)
    others = {
        _words(name)
        for name in files
        if name.casefold().endswith(_SUFFIX) and not is_projector(name) and "imatrix" not in name.casefold()
    }
    is_alone = others <= {own}
    fitting = [
        (-len(words & own), _precision(name), len(name), name)
        for name in files
        if is_projector(name)
        for words in (_words(name),)
        if is_alone or (words and words <= own)
    ]
    return min(fitting)[3] if fitting else None


def projector_beside(model: Path) -> Path | None:
    """The projector in the folder of a model file."""
    try:
        names = [file.name for file in model.parent.iterdir() if file.name.casefold().endswith(_SUFFIX)]
    except OSError:
        return None
    found = choose_projector(model.name, names)
    return None if found is None else model.parent / found


def read_projector(path: Path) -> ProjectorFacts:
    """What a projector file says; raises ModelNotFound, or LoadFailed for what is none."""
    projector = read_file(path).projector
    if projector is None:
        raise LoadFailed(
            f"{path} is no projector.",
            hint="A projector is the file that comes beside a model that sees, called mmproj-….gguf.",
        )
    return projector


def with_projector(facts: ModelFacts, projector: ProjectorFacts | None) -> ModelFacts:
    """The facts of a GGUF model together with its projector: only with one does it see or hear."""
    senses = () if projector is None else projector.senses
    return replace(facts, projector=projector, capabilities=with_senses(facts.capabilities, senses))


def with_projector_beside(facts: ModelFacts, found: Path | None) -> ModelFacts:
    """The same with a projector that was found: one that cannot be read is left out."""
    try:
        projector = None if found is None else read_projector(found)
    except GanglionError:
        projector = None
    return with_projector(facts, projector)


def with_senses(capabilities: Iterable[str], senses: tuple[str, ...]) -> tuple[str, ...]:
    """Capabilities with those of a projector, in the order people read them, and no others of that kind."""
    plain = [each for each in capabilities if each not in ("vision", "audio")]
    place = sum(each in ("chat", "tools") for each in plain)
    return (*plain[:place], *senses, *plain[place:])


def _words(name: str) -> frozenset[str]:
    """What a file name says of its model: neither precision nor part."""
    part = part_of(name)
    stem = (name if part is None else part.stem).casefold().removesuffix(_SUFFIX)
    words = _WORD.findall(stem.replace("_k_", " ").replace("-", " ").replace("_", " "))
    return frozenset(word for word in words if word not in _SAYS_NOTHING and not _is_precision(word))


def _is_precision(word: str) -> bool:
    return bool(re.fullmatch(r"(?:ud|i1|i?q\d(?:\.\d)?|[0-9klmsx]{1,2}|xxs|bf16|fp?16|fp?32|mxfp4)", word))


def _precision(name: str) -> int:
    quant = quant_of(PurePosixPath(name).name)
    return _PRECISIONS.index(quant) if quant in _PRECISIONS else len(_PRECISIONS)
