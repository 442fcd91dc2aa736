"""Resolves a name to a model. Pure: what exists is handed in as a NameCatalogue.

Law: the order is the id of a held model, an alias, `models.yaml`, stored files by name and by architecture,
the embedded model, the alias `*`, the hub; the first that knows the name decides. A request's name never
becomes a path: of files it can only mean those that the catalogue lists.
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, assert_never

from ganglion.core.errors import ModelNotFound
from ganglion.registry.files.parts import part_of
from ganglion.registry.hub.embedded import EmbeddedModel
from ganglion.registry.naming.catalogue import HeldModelRef, NameCatalogue
from ganglion.registry.naming.manifest import CATCH_ALL, ManifestEntry
from ganglion.registry.naming.names import HubId, ModelRef, fold, is_path, shortened
from ganglion.registry.stores.stored_models import NoMatch, Store, StoredMatch, StoredModel

_LISTED: Final = 10
_COMPARED: Final = 200
"""Names that are compared letter by letter for a hint: a wrong name must not cost more than a right one."""


@dataclass(frozen=True, slots=True)
class HeldSource:
    """Held already, under this id."""

    id: str


@dataclass(frozen=True, slots=True)
class LocalFileSource:
    """A file on this machine; it was named by its path where no store has it."""

    path: Path
    store: Store | None


@dataclass(frozen=True, slots=True)
class EmbeddedSource:
    """The embedded model, wherever its file lies."""

    model: EmbeddedModel


@dataclass(frozen=True, slots=True)
class HubSource:
    """To be downloaded; None leaves the quantisation to the downloader."""

    repo: str
    quant: str | None


Source = HeldSource | LocalFileSource | EmbeddedSource | HubSource


@dataclass(frozen=True, slots=True)
class ResolveStep:
    """One thing that was tried, and what it gave, in words."""

    tried: str
    gave: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name means, and how that was found."""

    id: str
    """The same for every name of one file."""
    aliases: tuple[str, ...]
    source: Source
    entry: ManifestEntry | None
    """What the manifest says of this model."""
    steps: tuple[ResolveStep, ...]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Nothing has this name, and what was tried."""

    name: str
    steps: tuple[ResolveStep, ...]
    hint: str | None = None


_Target = HeldModelRef | ManifestEntry | StoredMatch | Path | EmbeddedModel | HubId


@dataclass(frozen=True, slots=True)
class _Found:
    target: _Target
    why: str


def resolve(
    name: str, catalogue: NameCatalogue, *, may_be_path: bool, may_catch_all: bool = True
) -> Resolution:
    """What a name means; raises ModelNotFound.

    `may_be_path` is for what an operator wrote, after `operator_path` had its say. Whoever asks to load a
    model, and not merely for an answer, leaves the alias `*` out with `may_catch_all=False`.
    """
    outcome = explain(name, catalogue, may_be_path=may_be_path, may_catch_all=may_catch_all)
    if isinstance(outcome, Unresolved):
        raise ModelNotFound(outcome.name, hint=outcome.hint)
    return outcome


def explain(
    name: str, catalogue: NameCatalogue, *, may_be_path: bool, may_catch_all: bool = True
) -> Resolution | Unresolved:
    """As `resolve`, with the steps also of a name that means nothing."""
    if may_be_path and is_path(name) and "\0" not in name:
        return _settle(Path(name), catalogue, (ResolveStep("a path", name),))
    if name in catalogue.held_by_id:
        held = catalogue.held_by_id[name]
        return _settle(held, catalogue, (ResolveStep(_STAGES[0][0], held.id),))
    try:
        ref = ModelRef.parse(name)
    except ModelNotFound:
        refused = ResolveStep("a name", "not one that a model can have")
        return Unresolved(shortened(name), (refused,))
    steps: list[ResolveStep] = []
    for tried, stage in _STAGES:
        if stage is _by_catch_all and not may_catch_all:
            continue
        outcome = stage(ref, catalogue)
        steps.append(ResolveStep(tried, outcome.why))
        if isinstance(outcome, _Found):
            return _settle(outcome.target, catalogue, tuple(steps))
    return Unresolved(ref.text, tuple(steps), _hint(ref, catalogue))


def nearest_names_hint(wanted: str, names: Iterable[str]) -> str:
    """A hint that lists what could have been meant, the nearest name first."""
    here = list(dict.fromkeys(names))
    if not here:
        return "No model is here yet."
    listed = f"Here: {', '.join(here[:_LISTED])}{', …' if len(here) > _LISTED else ''}."
    nearest = _nearest(fold(wanted), here)
    return f"Did you mean {nearest}? {listed}" if nearest else listed


def _nearest(wanted: str, here: list[str]) -> str | None:
    folded = {fold(name): name for name in reversed(here)}
    names = list(folded)
    if len(names) > _COMPARED:
        start = wanted[:3]
        names = [name for name in names if start in name or name[:3] in wanted][:_COMPARED]
    nearest = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    return folded[nearest[0]] if nearest else None


def _by_id(ref: ModelRef, catalogue: NameCatalogue) -> _Found | NoMatch:
    held = catalogue.held_by_id.get(ref.text)
    return NoMatch("none is called so") if held is None else _Found(held, held.id)


def _by_alias(ref: ModelRef, catalogue: NameCatalogue) -> _Found | NoMatch:
    for name in _spellings(ref):
        held = catalogue.held_by_alias.get(name)
        if held is not None:
            return _Found(held, f"of {held.id}, which is held")
        entry = catalogue.entry_by_alias.get(name)
        if entry is not None:
            return _Found(entry, f"of {entry.key} in models.yaml")
    return NoMatch("nobody has it")


def _by_manifest(ref: ModelRef, catalogue: NameCatalogue) -> _Found | NoMatch:
    for name in _spellings(ref):
        entry = catalogue.entry_by_key.get(name)
        if entry is not None:
            return _Found(entry, f"the entry {entry.key}")
    hub = HubId.parse(ref.text)
    entry = None if hub is None else catalogue.entry_of_hub(hub)
    if entry is None and hub is not None and hub.quant is None:
        entry = next(iter(catalogue.entries_by_repo.get(fold(hub.repo), ())), None)
    return NoMatch("no entry of this name") if entry is None else _Found(entry, f"the hub id of {entry.key}")


def _by_file_name(ref: ModelRef, catalogue: NameCatalogue) -> _Found | NoMatch:
    return _picked(catalogue.stored_index.by_file_name(ref, catalogue.preferred_quant))


def _by_download(ref: ModelRef, catalogue: NameCatalogue) -> _Found | NoMatch:
    hub = HubId.parse(ref.text)
    if hub is None:
        return NoMatch("it is no hub id")
    return _picked(catalogue.stored_index.by_hub(hub, catalogue.preferred_quant))


def _by_architecture(ref: ModelRef, catalogue: NameCatalogue) -> _Found | NoMatch:
    return _picked(catalogue.stored_index.by_kind(ref, catalogue.preferred_quant))


def _by_embedded(ref: ModelRef, catalogue: NameCatalogue) -> _Found | NoMatch:
    model = catalogue.embedded
    if model is None:
        return NoMatch("there is none")
    if any(map(catalogue.is_embedded, _spellings(ref))):
        return _Found(model, model.id)
    kind = fold(model.architecture)
    if kind in (fold(ref.text), fold(ref.base)) and kind not in catalogue.stored_index.by_architecture:
        return _Found(model, f"{model.id}, the only model of this architecture")
    return NoMatch("it has another name")


def _by_catch_all(ref: ModelRef, catalogue: NameCatalogue) -> _Found | NoMatch:
    held = catalogue.held_by_alias.get(CATCH_ALL)
    if held is not None:
        return _Found(held, f"{held.id}, which is held, takes every name")
    entry = catalogue.entry_by_alias.get(CATCH_ALL)
    return NoMatch("nobody has it") if entry is None else _Found(entry, f"{entry.key} takes every name")


def _by_hub(ref: ModelRef, catalogue: NameCatalogue) -> _Found | NoMatch:
    hub = HubId.parse(ref.text)
    if hub is None:
        return NoMatch("it is no hub id")
    if not catalogue.may_download:
        return NoMatch("it is a hub id, but downloads are off")
    return _Found(hub, f"{hub.repo}, {hub.quant or 'any quantisation'}, to be downloaded")


_STAGES: Final[tuple[tuple[str, Callable[[ModelRef, NameCatalogue], _Found | NoMatch]], ...]] = (
    ("the exact id of a held model", _by_id),
    ("an alias", _by_alias),
    ("models.yaml", _by_manifest),
    ("stored files by name", _by_file_name),
    ("stored files by hub id", _by_download),
    ("stored files by architecture", _by_architecture),
    ("the embedded model", _by_embedded),
    (f"the alias {CATCH_ALL}", _by_catch_all),
    ("the hub", _by_hub),
)


def _spellings(ref: ModelRef) -> tuple[str, ...]:
    # Ollama's clients write `:latest` behind every name that has no tag.
    folded = fold(ref.text)
    return (folded, fold(ref.base)) if ref.tag is not None and fold(ref.tag) == "latest" else (folded,)


def _picked(outcome: StoredMatch | NoMatch) -> _Found | NoMatch:
    return _Found(outcome, outcome.why) if isinstance(outcome, StoredMatch) else outcome


def _settle(
    target: _Target, catalogue: NameCatalogue, steps: tuple[ResolveStep, ...]
) -> Resolution | Unresolved:
    """From what a stage found to the one id of it."""
    match target:
        case HeldModelRef():
            return _held(target, catalogue, steps)
        case StoredMatch(model=model):
            return _file(model, catalogue, steps)
        case Path():
            stored = catalogue.stored_index.by_path.get(target)
            return _file(stored or target, catalogue, steps)
        case ManifestEntry():
            return _entry(target, catalogue, steps)
        case EmbeddedModel():
            return _embedded(target, catalogue, steps)
        case HubId():
            source = HubSource(target.repo, target.quant)
            return _unless_held(Resolution(str(target), (), source, None, steps), catalogue)
        case _:
            assert_never(target)


def _held(held: HeldModelRef, catalogue: NameCatalogue, steps: tuple[ResolveStep, ...]) -> Resolution:
    entry = catalogue.entry_by_key.get(fold(held.id))
    return Resolution(held.id, held.aliases, HeldSource(held.id), entry, steps)


def _file(file: StoredModel | Path, catalogue: NameCatalogue, steps: tuple[ResolveStep, ...]) -> Resolution:
    path, store = (file, None) if isinstance(file, Path) else (file.path, file.store)
    held = catalogue.held_by_path.get(path)
    if held is not None:
        return _held(held, catalogue, (*steps, ResolveStep("models that run this file", held.id)))
    first, *others = catalogue.entries_by_path.get(path) or (None,)
    if first is not None:
        model_id, aliases = first.key, first.aliases
        aliases += tuple(name for other in others if other for name in (other.key, *other.aliases))
        steps = (*steps, ResolveStep("entries of models.yaml for this file", first.key))
    else:
        part = part_of(path.name)
        stem = path.stem if part is None else part.stem
        model_id = stem if isinstance(file, Path) else catalogue.id_of(file)
        aliases = ()
    return _unless_held(Resolution(model_id, aliases, LocalFileSource(path, store), first, steps), catalogue)


def _entry(
    entry: ManifestEntry, catalogue: NameCatalogue, steps: tuple[ResolveStep, ...]
) -> Resolution | Unresolved:
    file = catalogue.file_of(entry)
    if isinstance(file, Path):
        return _file(file, catalogue, steps)
    if isinstance(file, StoredMatch):
        return _file(file.model, catalogue, (*steps, ResolveStep("stored files", file.why)))
    steps = (*steps, ResolveStep("stored files", file.why))
    if entry.hub is not None:
        return _entry_of_hub(entry, entry.hub, catalogue, steps)
    if catalogue.embedded is not None and catalogue.is_embedded(entry.key):
        return _embedded(catalogue.embedded, catalogue, steps)
    return Unresolved(entry.key, steps, f"Give {entry.key} a path or a hub id in models.yaml.")


def _entry_of_hub(
    entry: ManifestEntry, hub: HubId, catalogue: NameCatalogue, steps: tuple[ResolveStep, ...]
) -> Resolution | Unresolved:
    if not catalogue.may_download:
        steps = (*steps, ResolveStep("the hub", f"{hub} would have to be downloaded, and downloads are off"))
        return Unresolved(
            entry.key, steps, f"models.yaml names {hub}, which is not here, and downloads are off."
        )
    owner = catalogue.entry_of_hub(hub) or entry
    steps = (*steps, ResolveStep("the hub", f"{hub}, to be downloaded"))
    source = HubSource(hub.repo, hub.quant)
    return _unless_held(Resolution(owner.key, owner.aliases, source, owner, steps), catalogue)


def _embedded(model: EmbeddedModel, catalogue: NameCatalogue, steps: tuple[ResolveStep, ...]) -> Resolution:
    entry = catalogue.embedded_entry
    model_id = model.id if entry is None else entry.key
    names = dict.fromkeys((model.id, *model.names, *(entry.aliases if entry else ())))
    aliases = tuple(name for name in names if name != model_id)
    return _unless_held(Resolution(model_id, aliases, EmbeddedSource(model), entry, steps), catalogue)


def _unless_held(resolution: Resolution, catalogue: NameCatalogue) -> Resolution:
    held = catalogue.held_by_id.get(resolution.id)
    if held is None:
        return resolution
    source = resolution.source
    if isinstance(source, LocalFileSource) and held.path not in (None, source.path):
        return resolution
    steps = (*resolution.steps, ResolveStep("models that are held", held.id))
    return replace(resolution, aliases=held.aliases, source=HeldSource(held.id), steps=steps)


def _hint(ref: ModelRef, catalogue: NameCatalogue) -> str:
    names = (
        *(held.id for held in catalogue.held),
        *catalogue.entry_by_key,
        *((catalogue.embedded.id,) if catalogue.embedded else ()),
        *(model.name for model in catalogue.stored),
    )
    here = nearest_names_hint(ref.text, names)
    is_hub_id = HubId.parse(ref.text) is not None
    return f"Downloads are off. {here}" if is_hub_id and not catalogue.may_download else here
