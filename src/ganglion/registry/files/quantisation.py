"""Quantisations: how file names write them, and which one is the default."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath
from typing import Final

from ganglion.core.errors import ModelNotFound
from ganglion.registry.files.parts import part_of

PREFERRED: Final = (
    *("Q4_K_M", "Q4_0", "Q5_K_M", "Q8_0"),
    *("Q4_K_XL", "Q4_K_L", "Q4_K_S", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_K", "MXFP4"),
    *("Q5_K_XL", "Q5_K_L", "Q5_K_S", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q6_K_L", "Q6_K_XL", "Q8_K_XL"),
    *("Q3_K_XL", "Q3_K_L", "Q3_K_M", "IQ3_M", "Q3_K_S", "IQ3_S", "IQ3_XS", "IQ3_XXS"),
    *("Q2_K_XL", "Q2_K_L", "Q2_K", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "TQ1_0", "IQ1_M", "IQ1_S"),
)
"""The order of preference where no quantisation was asked for."""
_UNQUANTISED: Final = ("BF16", "F16", "F32")
"""Taken last: two to eight times the memory for what few can tell from Q8_0."""

_PREFIXES: Final = ("UD-", "I1-")  # what two large publishers write before the quantisation
_QUANT: Final = r"(?:[IT]?Q[1-8](?:_[0-9A-Z]{1,3}){0,3}|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)"
_SUFFIX: Final = re.compile(rf"(?P<base>.+?)[-._ ](?P<quant>(?:UD-|I1-)?{_QUANT})", re.IGNORECASE)
_LABEL: Final = re.compile(rf"(?<![A-Z0-9])((?:UD-)?{_QUANT})(?![A-Z0-9])")


def canonical(text: str) -> str:
    """One spelling for each quantisation."""
    upper = text.strip().upper()
    return {"FP16": "F16", "FP32": "F32", "MXFP4_MOE": "MXFP4"}.get(upper, upper)


def split_suffix(stem: str) -> tuple[str, str]:
    """A stem without its quantisation, and the quantisation; the whole stem and "" when it has none."""
    found = _SUFFIX.fullmatch(stem)
    return (found["base"], canonical(found["quant"])) if found else (stem, "")


def without_prefix(quantisation: str) -> str:
    """The quantisation itself, without its publisher's mark."""
    for prefix in _PREFIXES:
        quantisation = quantisation.removeprefix(prefix)
    return quantisation


def rank(quantisation: str) -> int:
    """Its place among all: those of PREFERRED, others, none at all, then those of UNQUANTISED."""
    bare = without_prefix(quantisation)
    if bare in PREFERRED:
        return PREFERRED.index(bare)
    if bare in _UNQUANTISED:
        return len(PREFERRED) + 2 + _UNQUANTISED.index(bare)
    return len(PREFERRED) + (not bare)


_COMPANIONS: Final = ("mmproj", "imatrix")
"""Files that lie beside models and are none."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """One model among a repository's files; its quantisation is empty where its name says none."""

    quant: str
    paths: tuple[str, ...]


def variants(paths: Iterable[str]) -> list[_Variant]:
    """The models among these files, the one to prefer first; a split file with a part missing is none."""
    models = sorted((path for path in paths if _is_model(path)), key=lambda path: (_split(path), path))
    found = []
    for (stem, count), parts in groupby(models, _split):
        group = tuple(parts)
        if count in (0, len(group)):
            found.append(_Variant(quant_of(stem), group))
    return sorted(found, key=_rank)


def choose(repo: str, quant: str | None, models: list[_Variant]) -> _Variant:
    """The model that `repo:quant` means; a quant may also be a file's name. Raises ModelNotFound."""
    if not models:
        raise ModelNotFound(
            repo, hint="The repository holds no GGUF file; look for one whose name ends in -GGUF."
        )
    if not quant:
        return models[0]
    folded = quant.casefold()
    for names in (_labels, _short_labels, _file_names):
        for model in models:
            if folded in names(model):
                return model
    there = ", ".join(dict.fromkeys(model.quant or PurePosixPath(model.paths[0]).stem for model in models))
    raise ModelNotFound(f"{repo}:{quant}", hint=f"The repository has {there}.")


def quant_of(path: str) -> str:
    """The quantisation that a file name says, else the one of its folder; empty when neither says one."""
    file = PurePosixPath(path)
    for text in (file.name.removesuffix(".gguf"), file.parent.name):
        labels = _LABEL.findall(text.upper())
        if labels:
            return canonical(str(labels[-1]))
    return ""


def _is_model(path: str) -> bool:
    name = PurePosixPath(path).name.casefold()
    return name.endswith(".gguf") and not any(companion in name for companion in _COMPANIONS)


def _split(path: str) -> tuple[str, int]:
    file = PurePosixPath(path)
    part = part_of(file.name)
    return (path, 0) if part is None else (str(file.with_name(part.stem)), part.count)


def _rank(model: _Variant) -> tuple[int, int, int, int, tuple[str, ...]]:
    first = model.paths[0]
    is_marked = without_prefix(model.quant) != model.quant
    return rank(model.quant), is_marked, first.count("/"), len(first), model.paths


def _labels(model: _Variant) -> tuple[str, ...]:
    return (model.quant.casefold(),)


def _short_labels(model: _Variant) -> tuple[str, ...]:
    return (model.quant.casefold().removeprefix("ud-"), model.quant.casefold().replace("f16", "fp16"))


def _file_names(model: _Variant) -> tuple[str, ...]:
    files = [PurePosixPath(path) for path in model.paths]
    names = [name for file in files for name in (str(file), file.name, file.stem)]
    return tuple(name.casefold() for name in (*names, PurePosixPath(_split(model.paths[0])[0]).name))
