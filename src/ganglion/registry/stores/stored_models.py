"""A model file that this machine already has, wherever another program put it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, get_args

from ganglion.registry.files import quantisation
from ganglion.registry.files.formats import FORMATS, Format
from ganglion.registry.naming.names import HubId, ModelRef, fold

Store = Literal["models folder", "Hugging Face cache", "LM Studio", "Ollama", "folder"]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """Found, not opened: what a listing needs, and enough to resolve a name to it."""

    name: str
    """The file's stem without the part number of a split file; for Ollama `name:tag`."""
    path: Path
    """The file to open; of a split model the first part, of a checkpoint its folder."""
    files: tuple[Path, ...]
    """All parts, in order; of a checkpoint also what lies beside its weights."""
    store: Store
    size_bytes: int
    """Of all parts."""
    architecture: str | None = None
    """As the file says; None when it could not be read."""
    quantisation: str = ""
    hub_id: str | None = None
    """`org/repo` where the store knows it."""
    error: str | None = None
    """Why it cannot be used, for people."""
    parameters: int = 0
    context_length: int = 0
    """As trained; 0 when the file does not say."""
    capabilities: tuple[str, ...] = ()
    format: Format = "gguf"
    projector: Path | None = None
    """The file beside it that lets it see or hear."""


# Law: it opens nothing and answers only with files that were handed in. Names are compared in any case. Of
# several quantisations of one model the operator's comes first, then the format that the configured engine
# reads, then the order of `quantisation.PREFERRED`; of several files alike, the store first named in
# `_STORE_ORDER`. Several *different* models are never chosen between.

_STORE_ORDER: Final[tuple[str, ...]] = get_args(Store)
_LATEST: Final = ":latest"
_LISTED: Final = 5


@dataclass(frozen=True, slots=True)
class StoredMatch:
    """A file, and in words why this one."""

    model: StoredModel
    why: str


@dataclass(frozen=True, slots=True)
class NoMatch:
    """No file, and in words why none."""

    why: str


@dataclass(frozen=True)  # no slots: most of it is asked for of few, and then kept
class _IndexedModel:
    """A stored model with what is compared of it."""

    model: StoredModel
    formats: tuple[Format, ...] = FORMATS
    """In the order of preference."""

    @property
    def base(self) -> str:
        """Its name without the quantisation: equal for all files of one model."""
        return self._split[0]

    @property
    def named(self) -> str:
        """The quantisation that its name says."""
        return self._split[1]

    @property
    def quantisation(self) -> str:
        """As the name says, which also knows its publisher's mark, else as the file says."""
        return self.named or self._stated

    @cached_property
    def spellings(self) -> frozenset[str]:
        """What a tag may call its quantisation, or its format."""
        bare = quantisation.without_prefix(self.named)
        return frozenset({self.named, bare, self._stated, self.model.format.upper()} - {""})

    @cached_property
    def order(self) -> tuple[bool, int, int, int, str]:
        """Its sort key: usable ones first, then by format, preference, store and path."""
        model = self.model
        rank, store = quantisation.rank(self.quantisation), _STORE_ORDER.index(model.store)
        return model.error is not None, self.formats.index(model.format), rank, store, str(model.path)

    @property
    def _stated(self) -> str:
        return quantisation.canonical(self.model.quantisation)

    @cached_property
    def _split(self) -> tuple[str, str]:
        base, named = quantisation.split_suffix(self.model.name)
        return fold(base), named

    def __str__(self) -> str:
        unusable = f", which cannot be used: {self.model.error}" if self.model.error else ""
        return f"{self.model.name} ({self.model.store}{unusable})"


_Group = tuple[_IndexedModel, ...]
_Groups = Mapping[str, _Group]


@dataclass(frozen=True)  # no slots, as above
class StoredModelIndex:
    """Stored models, each index made when it is first asked."""

    stored: tuple[StoredModel, ...]
    formats: tuple[Format, ...] = FORMATS
    """In the order of preference where a name leaves the format open."""

    @cached_property
    def items(self) -> _Group:
        """All of them, to be compared."""
        return tuple(_IndexedModel(model, self.formats) for model in self.stored)

    @cached_property
    def by_name(self) -> _Groups:
        """By the whole name."""
        return _grouped(self.items, lambda item: (fold(item.model.name),))

    @cached_property
    def by_base(self) -> _Groups:
        """By name without quantisation, and by Ollama name without tag."""
        return _grouped(self.items, _bases)

    @cached_property
    def by_architecture(self) -> _Groups:
        """By what the file says it is, of those that can be used."""
        usable = (item for item in self.items if item.model.error is None)
        return _grouped(usable, lambda item: (fold(item.model.architecture or ""),))

    @cached_property
    def by_hub_id(self) -> _Groups:
        """By the repository it came from."""
        return _grouped(self.items, lambda item: (fold(item.model.hub_id or ""),))

    @cached_property
    def by_path(self) -> Mapping[Path, StoredModel]:
        """Under each of a model's files."""
        return {path: model for model in reversed(self.stored) for path in (model.path, *model.files)}

    def by_file_name(self, ref: ModelRef, preferred: str | None) -> StoredMatch | NoMatch:
        """The file that is called so, with or without its ending, quantisation or tag."""
        text = fold(ref.text).removesuffix(".gguf")
        attempts = [lambda: self._called(text, None, preferred), lambda: self._numbered(text)]
        if ref.tag is not None:
            base, tag = fold(ref.base), ref.tag
            note = f"no file has the tag {tag}, so by the name alone"
            attempts += [
                lambda: self._called(base, tag, preferred),
                lambda: self._called(fold(f"{base}-{tag}"), None, preferred),
                lambda: _noted(self._called(base, None, preferred), note),
            ]
        return _first(attempts) or NoMatch("no file is called so")

    def by_kind(self, ref: ModelRef, preferred: str | None) -> StoredMatch | NoMatch:
        """The only model of the architecture that the name spells."""
        attempts = [lambda: self._of_kind(ref.text, None, preferred)]
        if ref.tag is not None:
            base, tag = ref.base, ref.tag
            attempts += [
                lambda: self._of_kind(base, tag, preferred),
                lambda: self._of_kind(base, None, preferred),
            ]
        return _first(attempts) or NoMatch("no file has this architecture")

    def by_hub(self, hub: HubId, preferred: str | None) -> StoredMatch | NoMatch:
        """The file that was downloaded from there, in the quantisation that is asked for."""
        group = self.by_hub_id.get(fold(hub.repo), ())
        if not group:
            return NoMatch("no store holds a file from there")
        matching = _tagged(group, hub.quant)
        if not matching:
            here = sorted({item.quantisation or "of unknown quantisation" for item in group})
            return NoMatch(f"the files from there are {_listed(here)}")
        return _chosen(matching, hub.quant or preferred)

    def rank_of(self, model: StoredModel) -> int:
        """How many files of the same name come before this one."""
        mine = _IndexedModel(model, self.formats).order
        return sum(item.order < mine for item in self.by_name[fold(model.name)])

    def _called(self, name: str, tag: str | None, preferred: str | None) -> StoredMatch | NoMatch | None:
        named = self.by_name.get(name, ())
        # The name of a checkpoint says no quantisation: what differs from it in that alone is called so, too.
        if any(item.model.format != "gguf" for item in named):
            named = tuple(dict.fromkeys((*named, *self.by_base.get(name, ()))))
        group = _tagged(named, tag) or _tagged(self.by_base.get(name, ()), tag)
        return _one_model(group, preferred) if group else None

    def _numbered(self, name: str) -> StoredMatch | NoMatch | None:
        base, _, number = name.rpartition("#")
        group = sorted(self.by_name.get(base, ()), key=lambda item: item.order)
        for place, item in enumerate(group, start=1):
            if str(place) == number:
                return StoredMatch(item.model, f"{item}, number {place} of this name")
        return None

    def _of_kind(self, name: str, tag: str | None, preferred: str | None) -> StoredMatch | NoMatch | None:
        group = _tagged(self.by_architecture.get(fold(name), ()), tag)
        return _one_model(group, preferred) if group else None


def _one_model(group: _Group, preferred: str | None) -> StoredMatch | NoMatch:
    latest = tuple(item for item in group if item.base.endswith(_LATEST))
    if latest:
        return _chosen(latest, preferred)
    if len({item.base for item in group}) == 1:
        return _chosen(group, preferred)
    return NoMatch(f"it could be any of {_listed(sorted({item.model.name for item in group}))}")


def _chosen(group: _Group, preferred: str | None) -> StoredMatch:
    quant = quantisation.canonical(preferred or "")
    best = min(group, key=lambda item: (item.order[0], *_distance(item, quant), *item.order))
    if len(group) == 1:
        return StoredMatch(best.model, str(best))
    quantisations = {item.quantisation for item in group}
    if len(quantisations) == 1:
        return StoredMatch(best.model, f"{best}, the first of {len(group)} such files")
    formats = {item.model.format for item in group}
    if len(formats) > 1 and quant not in best.spellings:
        first = "the format that the configured engine prefers"
        others = _listed(sorted(formats - {best.model.format}))
        return StoredMatch(best.model, f"{best}: {best.model.format} is {first}, {others} would be here too")
    reason = "is configured" if quant in best.spellings else "comes first in the order of preference"
    others = _listed(sorted(quantisations - {best.quantisation, ""})) or "others"
    return StoredMatch(
        best.model, f"{best}: {best.quantisation or 'it'} {reason}, {others} would be here too"
    )


def _distance(item: _IndexedModel, quant: str) -> tuple[bool, bool]:
    if not quant:
        return False, False
    return item.quantisation != quant, quant not in item.spellings


def _tagged(group: _Group, tag: str | None) -> _Group:
    if tag is None:
        return group
    quant = quantisation.canonical(tag)
    return tuple(item for item in group if quant in item.spellings)


def _first(attempts: Iterable[Callable[[], StoredMatch | NoMatch | None]]) -> StoredMatch | NoMatch | None:
    missed: NoMatch | None = None
    for attempt in attempts:
        outcome = attempt()
        if isinstance(outcome, StoredMatch):
            return outcome
        missed = missed or outcome
    return missed


def _noted(outcome: StoredMatch | NoMatch | None, note: str) -> StoredMatch | NoMatch | None:
    return (
        StoredMatch(outcome.model, f"{outcome.why}; {note}") if isinstance(outcome, StoredMatch) else outcome
    )


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:_LISTED])}{', …' if len(names) > _LISTED else ''}"


def _bases(item: _IndexedModel) -> tuple[str, ...]:
    untagged, colon, _ = item.model.name.rpartition(":")
    return tuple({item.base, fold(untagged)}) if colon else (item.base,)


def _grouped(items: Iterable[_IndexedModel], keys: Callable[[_IndexedModel], tuple[str, ...]]) -> _Groups:
    groups: dict[str, list[_IndexedModel]] = defaultdict(list)
    for item in items:
        for key in keys(item):
            groups[key].append(item)
    groups.pop("", None)
    return {key: tuple(group) for key, group in groups.items()}
