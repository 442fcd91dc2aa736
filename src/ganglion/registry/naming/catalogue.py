"""Everything that a name can mean: held models, the manifest, stored files, and what may be fetched.

Law: two names of one file give one id. It is the id under which the file is held, else its first key in the
manifest, else the file's own name; a name that is taken gives way to `org/repo:quant`, else to `name#2`.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ganglion.registry.files.formats import FORMATS, Format
from ganglion.registry.files.quantisation import canonical
from ganglion.registry.hub.embedded import SMOLLM2, EmbeddedModel
from ganglion.registry.naming.manifest import ManifestEntry, ModelsManifest
from ganglion.registry.naming.names import HubId, ModelRef, fold
from ganglion.registry.stores.stored_models import NoMatch, StoredMatch, StoredModel, StoredModelIndex


@dataclass(frozen=True, slots=True)
class HeldModelRef:
    """A model that an engine holds, or is about to, under its id."""

    id: str
    aliases: tuple[str, ...] = ()
    path: Path | None = None
    """The file that it runs, as `real_file` gives it; None where there is none or it is not known."""


@dataclass(frozen=True)  # no slots: what is looked up often is indexed on first use and kept
class NameCatalogue:
    """Everything that a name can mean; paths are compared as handed in, so each comes from `real_file`."""

    held: tuple[HeldModelRef, ...] = ()
    manifest: ModelsManifest = ModelsManifest()
    stored: tuple[StoredModel, ...] = ()
    may_download: bool = False
    embedded: EmbeddedModel | None = SMOLLM2
    preferred_quant: str | None = None
    """What is taken where a name leaves the quantisation open; None takes the documented order."""
    formats: tuple[Format, ...] = FORMATS
    """Which format is taken first where a name leaves it open."""

    def with_held(self, held: tuple[HeldModelRef, ...]) -> "NameCatalogue":
        """The same with other models held, and the stored files not indexed again."""
        other = replace(self, held=held)
        other.__dict__["stored_index"] = self.stored_index
        return other

    @cached_property
    def stored_index(self) -> StoredModelIndex:
        """The stored files, indexed."""
        return StoredModelIndex(self.stored, self.formats)

    @cached_property
    def held_by_id(self) -> Mapping[str, HeldModelRef]:
        """Held models by exact id."""
        return {held.id: held for held in self.held}

    @cached_property
    def held_by_alias(self) -> Mapping[str, HeldModelRef]:
        """Held models by folded alias, the first one that has it."""
        return {fold(alias): held for held in reversed(self.held) for alias in held.aliases}

    @cached_property
    def held_by_path(self) -> Mapping[Path, HeldModelRef]:
        """Held models by file."""
        return {held.path: held for held in reversed(self.held) if held.path is not None}

    @cached_property
    def entry_by_key(self) -> Mapping[str, ManifestEntry]:
        """Manifest entries by key."""
        return {entry.key: entry for entry in self.manifest.entries}

    @cached_property
    def entry_by_alias(self) -> Mapping[str, ManifestEntry]:
        """Manifest entries by folded alias."""
        return {fold(alias): entry for entry in self.manifest.entries for alias in entry.aliases}

    @cached_property
    def entries_by_path(self) -> Mapping[Path, tuple[ManifestEntry, ...]]:
        """Manifest entries by the file that they mean, in the order in which they are written."""
        entries: dict[Path, list[ManifestEntry]] = defaultdict(list)
        for entry in self.manifest.entries:
            file = self.file_of(entry)
            if not isinstance(file, NoMatch):
                entries[file if isinstance(file, Path) else file.model.path].append(entry)
        return {path: tuple(found) for path, found in entries.items()}

    @cached_property
    def entries_by_repo(self) -> Mapping[str, tuple[ManifestEntry, ...]]:
        """Manifest entries by the folded hub repository that they name."""
        entries: dict[str, list[ManifestEntry]] = defaultdict(list)
        for entry in self.manifest.entries:
            if entry.hub is not None:
                entries[fold(entry.hub.repo)].append(entry)
        return {repo: tuple(found) for repo, found in entries.items()}

    @cached_property
    def embedded_entry(self) -> ManifestEntry | None:
        """The first manifest entry that is about the embedded model."""
        for entry in self.manifest.entries:
            is_open = entry.path is None and entry.hub is None
            if is_open and self.is_embedded(entry.key) and isinstance(self.file_of(entry), NoMatch):
                return entry
        return None

    def is_embedded(self, name: str) -> bool:
        """Whether the embedded model is called so."""
        model = self.embedded
        return model is not None and fold(name) in map(fold, (model.id, *model.names))

    def file_of(self, entry: ManifestEntry) -> StoredMatch | Path | NoMatch:
        """The file that an entry means: a stored one, one that only the entry knows, or none that is here."""
        if entry.path is not None:
            stored = self.stored_index.by_path.get(entry.path)
            return entry.path if stored is None else StoredMatch(stored, str(stored.path))
        preferred = entry.quant or self.preferred_quant
        if entry.hub is not None:
            return self.stored_index.by_hub(entry.hub, preferred)
        ref = ModelRef(entry.key)
        named = self.stored_index.by_file_name(ref, preferred)
        return named if isinstance(named, StoredMatch) else self.stored_index.by_kind(ref, preferred)

    def entry_of_hub(self, hub: HubId) -> ManifestEntry | None:
        """The first entry that names this hub id, quantisation included."""
        quant = canonical(hub.quant or "")
        for entry in self.entries_by_repo.get(fold(hub.repo), ()):
            if canonical(entry.quant or "") == quant:
                return entry
        return None

    def id_of(self, model: StoredModel) -> str:
        """The one id under which a stored file is held."""
        held = self.held_by_path.get(model.path)
        if held is not None:
            return held.id
        entries = self.entries_by_path.get(model.path)
        if entries:
            return entries[0].key
        place = self.stored_index.rank_of(model)
        if place == 0 and not self._is_taken(fold(model.name)):
            if model.format == "gguf" or self._means(model.name, model):
                return model.name
            # A GGUF file of this name is taken first: the checkpoint is called by its format as well.
            if self._means(f"{model.name}:{model.format}", model):
                return f"{model.name}:{model.format}"
        tag = model.quantisation if model.format == "gguf" else model.format
        hub = HubId.parse(f"{model.hub_id}:{tag}")
        found = NoMatch("") if hub is None else self.stored_index.by_hub(hub, None)
        return (
            str(hub)
            if isinstance(found, StoredMatch) and found.model is model
            else f"{model.name}#{place + 1}"
        )

    def _means(self, name: str, model: StoredModel) -> bool:
        """Whether a name, by itself, is one of this model."""
        found = self.stored_index.by_file_name(ModelRef(name), self.preferred_quant)
        return isinstance(found, StoredMatch) and found.model is model

    def _is_taken(self, name: str) -> bool:
        if name in self.entry_by_key or name in self.entry_by_alias:
            return True
        return any(fold(held.id) == name and held.path is not None for held in self.held)
