"""`ganglion models list`: every model that this machine has, and those that `models.yaml` only names."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ganglion.cli.flags import ConfigFile, Json
from ganglion.cli.models.local_models import LocalContext
from ganglion.cli.terminal.console import say

if TYPE_CHECKING:
    from ganglion.registry.naming.manifest import ManifestEntry
    from ganglion.registry.stores.stored_models import StoredModel

_HEADINGS: Final = ("name", "size", "quant", "params", "context", "can", "engine", "store")
_NUMBERS: Final = ("size", "params", "context")
_MANIFEST: Final = "models.yaml"
_EMBEDDED: Final = "embedded"


@dataclass(frozen=True, slots=True)
class _ModelListRow:
    """One model of the list, as `--json` prints it."""

    id: str
    store: str
    path: str | None
    """None while it is not on this machine."""
    size_bytes: int = 0
    architecture: str | None = None
    quantisation: str = ""
    parameters: int = 0
    context_length: int = 0
    capabilities: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    hub_id: str | None = None
    format: str | None = None
    """None while only the hub could say."""
    engine: str | None = None
    """What runs it here; None where nothing installed does, or while its format is not known."""
    error: str | None = None
    """Why it cannot be used."""


def list_models(*, json: Json = False, config: ConfigFile = None) -> None:
    """Show every model on this machine."""
    from ganglion.cli.terminal.output import TableRow, print_json, print_table

    local = LocalContext.read(config)
    listed = sorted(
        (_with_engine(model, local) for model in _every(local)), key=lambda model: model.id.casefold()
    )
    if json:
        print_json(listed)
        return
    print_table(_HEADINGS, [TableRow(_cells(model), _note(model)) for model in listed], right=_NUMBERS)
    broken = sum(model.error is not None for model in listed)
    if broken:
        say(f"{broken} of {len(listed)} cannot be used")


def _with_engine(model: _ModelListRow, local: LocalContext) -> _ModelListRow:
    """The same with the engine that runs it, or the reason why none does."""
    from dataclasses import replace

    from ganglion.core.engine import LoadOptions
    from ganglion.core.errors import GanglionError
    from ganglion.registry.files.model_files import format_of
    from ganglion.registry.naming.names import fold

    if model.path is None or model.error is not None:
        return model
    model_format, path = format_of(Path(model.path)), Path(model.path)
    entry = local.catalogue.entry_by_key.get(fold(model.id))
    try:
        local.builds.selection.check_code(path)
        choice = local.builds.selection.choose(model.id, model_format, entry, LoadOptions())
    except GanglionError as error:
        return replace(model, format=model_format, error=f"{error.message} {error.hint or ''}".strip())
    return replace(model, format=model_format, engine=choice.engine)


def _every(local: LocalContext) -> Iterator[_ModelListRow]:
    """What the stores hold, then what `models.yaml` names beyond that, then the embedded model."""
    from ganglion.registry.stores.stored_models import NoMatch

    catalogue = local.catalogue
    for model in catalogue.stored:
        yield _stored(model, catalogue.id_of(model), catalogue.entries_by_path.get(model.path, ()))
    for entry in catalogue.manifest.entries:
        file = catalogue.file_of(entry)
        if isinstance(file, Path):
            yield _at(file, _ModelListRow(entry.key, _MANIFEST, str(file), aliases=entry.aliases))
        elif entry.hub is not None and isinstance(file, NoMatch):
            yield _ModelListRow(entry.key, _MANIFEST, None, aliases=entry.aliases, hub_id=str(entry.hub))
        elif isinstance(file, NoMatch) and not catalogue.is_embedded(entry.key):
            error = "no stored file is called so; give it a path or a hub id in models.yaml"
            yield _ModelListRow(entry.key, _MANIFEST, None, aliases=entry.aliases, error=error)
    embedded = catalogue.embedded
    if embedded is not None:
        entry_of_it = catalogue.embedded_entry
        names = (embedded.id, *embedded.names, *(entry_of_it.aliases if entry_of_it else ()))
        model_id = embedded.id if entry_of_it is None else entry_of_it.key
        aliases = tuple(name for name in dict.fromkeys(names) if name != model_id)
        found = local.embedded
        if found is None:
            yield _ModelListRow(model_id, _EMBEDDED, None, embedded.size_bytes, aliases=aliases)
        else:
            yield _at(found.path, _ModelListRow(model_id, _EMBEDDED, str(found.path), aliases=aliases))


def _stored(model: "StoredModel", model_id: str, entries: "tuple[ManifestEntry, ...]") -> _ModelListRow:
    names = dict.fromkeys(name for entry in entries for name in (entry.key, *entry.aliases))
    return _ModelListRow(
        id=model_id,
        store=model.store,
        path=str(model.path),
        size_bytes=model.size_bytes,
        architecture=model.architecture,
        quantisation=model.quantisation,
        parameters=model.parameters,
        context_length=model.context_length,
        capabilities=model.capabilities,
        aliases=tuple(name for name in names if name != model_id),
        hub_id=model.hub_id,
        error=model.error,
    )


def _at(path: Path, known: _ModelListRow) -> _ModelListRow:
    """The same with what the file says of itself."""
    from dataclasses import replace

    from ganglion.core.errors import GanglionError
    from ganglion.registry.stores.sighted import read_whole_facts

    try:
        facts = read_whole_facts(path)
    except GanglionError as error:
        return replace(known, error=error.message)
    return replace(
        known,
        size_bytes=facts.size_bytes,
        architecture=facts.architecture,
        quantisation=facts.quantisation,
        parameters=facts.parameters,
        context_length=facts.context_length,
        capabilities=facts.capabilities,
    )


def _cells(model: _ModelListRow) -> tuple[str, ...]:
    from ganglion.cli.terminal.format import NOTHING, count_words, number_words, size_words

    return (
        model.id,
        size_words(model.size_bytes) if model.size_bytes else NOTHING,
        model.quantisation or NOTHING,
        count_words(model.parameters),
        number_words(model.context_length),
        _abilities(model.capabilities),
        model.engine or NOTHING,
        model.store,
    )


def _abilities(capabilities: tuple[str, ...]) -> str:
    from ganglion.cli.terminal.format import NOTHING

    # Whatever chats can also complete.
    shown = [each for each in capabilities if each != "completion" or "chat" not in capabilities]
    return " ".join(shown) or NOTHING


def _note(model: _ModelListRow) -> str | None:
    if model.error is not None:
        return f"cannot be used: {model.error}"
    return f"not here; ganglion models pull {model.id}" if model.path is None else None
