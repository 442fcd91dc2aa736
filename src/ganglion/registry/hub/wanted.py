"""Which of a repository's files a name means: one of its GGUF files, or its checkpoint. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ganglion.core.errors import ModelNotFound
from ganglion.registry.files.checkpoint_files import CONFIG, SUFFIX, checkpoint_of, is_weights, pickles
from ganglion.registry.files.formats import FORMATS, Format, format_of_tag
from ganglion.registry.files.projectors import choose_projector
from ganglion.registry.files.quantisation import choose, variants


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The paths of one model in its repository."""

    format: Format
    quant: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WantedModel:
    """A repository, what its name says of the quantisation or the format, and which format comes first."""

    repo: str
    quant: str | None
    formats: tuple[Format, ...] = FORMATS
    trusts_code: bool = False
    """Whether code that comes with a checkpoint belongs to it."""

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo

    def among(self, paths: Iterable[str], others: Sequence[str] = ()) -> FoundModel:
        """The model that is meant; raises ModelNotFound with what there is instead."""
        listed = tuple(paths)
        named = format_of_tag(self.quant)
        if named is not None:
            return self._in_format(named, None, listed, others)
        if self.quant:
            return self._in_format("gguf", self.quant, listed, others)
        there = [each for each in self.formats if _is_there(each, listed)]
        # With nothing to choose from, the message is about what people look for here.
        likely: Format = "safetensors" if CONFIG in listed or pickles(others) else "gguf"
        return self._in_format(there[0] if there else likely, None, listed, others)

    def _in_format(
        self, wanted: Format, quant: str | None, listed: tuple[str, ...], others: Sequence[str]
    ) -> FoundModel:
        if wanted == "gguf":
            found = choose(self.repo, quant, variants(listed))
            return FoundModel("gguf", found.quant, (*found.paths, *_projector(found.paths[0], listed)))
        checkpoint = checkpoint_of(listed)
        if checkpoint is None or checkpoint.missing is not None:
            missing = None if checkpoint is None else checkpoint.missing
            raise ModelNotFound(str(self), hint=_absence(listed, missing, others))
        code = checkpoint.code if self.trusts_code else ()
        return FoundModel("safetensors", "", (*checkpoint.beside, *code, *checkpoint.weights))


def _projector(model: str, listed: tuple[str, ...]) -> tuple[str, ...]:
    """The projector beside a model in its repository: in its folder, else where the repository begins."""
    for folder in dict.fromkeys((PurePosixPath(model).parent, PurePosixPath())):
        names = {path.name: path for path in map(PurePosixPath, listed) if path.parent == folder}
        found = choose_projector(PurePosixPath(model).name, names)
        if found is not None:
            return (str(names[found]),)
    return ()


def _is_there(wanted: Format, listed: tuple[str, ...]) -> bool:
    return bool(variants(listed)) if wanted == "gguf" else checkpoint_of(listed) is not None


def _absence(listed: tuple[str, ...], missing: str | None, others: Sequence[str]) -> str:
    if missing is not None:
        return f"The repository lacks {missing}, a part of its weights."
    if any(path.startswith("adapter_") for path in others):
        return "The repository holds an adapter, not a model of its own."
    found = pickles(others)
    if found and not any(map(is_weights, listed)):
        return (
            f"The repository holds its weights as pickle ({found[0]}) alone, which can run code when it is "
            f"read; look for one with {SUFFIX} or GGUF files."
        )
    if CONFIG not in listed:
        return f"The repository holds no {CONFIG}: it is no checkpoint of a language model."
    return f"The repository holds no {SUFFIX} file."
