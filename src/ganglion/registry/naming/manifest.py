"""`models.yaml`: the models that an operator names, and how each is to be run.

A `models:` map, entries at the top level, or both. An entry is a path, a hub id `org/repo[:quant]`, or a
table; a table without path and hub is about the file that its key names. Relative paths start at the file's
own folder.
"""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, fields

from ganglion.core.device_layout import (
    DEFAULT_LAYOUT,
    LAYOUT_FIELDS,
    MAX_WAYS,
    DeviceLayout,
    Executor,
    normalized_devices,
)
from ganglion.core.errors import InvalidValue, ModelNotFound, UnknownParameter
from ganglion.core.sampling import Sampling, limits, sampling_from
from ganglion.registry.files.quantisation import canonical
from ganglion.registry.naming.durations import parse_duration_s
from ganglion.registry.naming.names import HubId, ModelRef, fold, is_path, real_file

_T = TypeVar("_T", bound=Struct)

CATCH_ALL: Final = "*"
"""The alias that stands for every name that nothing else answers to."""

_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_WayCount = Annotated[int, Meta(ge=1, le=MAX_WAYS)]
_Text = Annotated[str, Meta(min_length=1)]
_EXPECTED: Final = "expected a path, a hub id org/repo[:quant] or a table"


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One model of the manifest; None leaves a setting to the configuration."""

    key: str
    path: Path | None = None
    """Absolute, its links followed as `real_file` does."""
    hub: HubId | None = None
    quant: str | None = None
    """Also that of `hub`."""
    engine: str | None = None
    context_length: int | None = None
    kv_tokens: int | None = None
    parallel: int | None = None
    is_pinned: bool = False
    priority: int = 0
    keep_alive_s: float | None = None
    """Infinite for "forever"."""
    aliases: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    chat_template: str | None = None
    """The template itself, or the absolute path of its file."""
    mmproj: str | None = None
    """The absolute path of its projector, or "none"."""
    gpu_layers: int | None = None
    layout: DeviceLayout = DEFAULT_LAYOUT


@dataclass(frozen=True, slots=True)
class ModelsManifest:
    """All entries; no key or alias stands twice, in any case."""

    entries: tuple[ManifestEntry, ...] = ()


class _SamplingTable(Struct, frozen=True):
    temperature: Annotated[float, Meta(**limits("temperature"))] | None = None
    top_p: Annotated[float, Meta(**limits("top_p"))] | None = None
    top_k: Annotated[int, Meta(**limits("top_k"))] | None = None
    min_p: Annotated[float, Meta(**limits("min_p"))] | None = None
    repetition_penalty: Annotated[float, Meta(**limits("repetition_penalty"))] | None = None


class _Table(Struct, frozen=True):
    """An entry as it is written."""

    path: _Text | None = None
    hub: _Text | None = None
    engine: _Text | None = None
    quant: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,32}$")] | None = None
    context_length: _Count | None = None
    kv_tokens: _Count | None = None
    parallel: _Count | None = None
    pinned: bool = False
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    keep_alive: int | float | str | None = None
    aliases: str | tuple[str, ...] = ()
    sampling: dict[str, object] | None = None
    chat_template: _Text | None = None
    mmproj: _Text | None = None
    gpu_layers: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    tensor_parallel: _WayCount | None = None
    pipeline_parallel: _WayCount | None = None
    data_parallel: _WayCount | None = None
    devices: tuple[str | int, ...] | None = None
    executor: Executor | None = None


@dataclass(frozen=True, slots=True)
class _KeyPath:
    """The position of a key in the file, for error messages."""

    file: Path
    key: str

    def under(self, key: str) -> "_KeyPath":
        return _KeyPath(self.file, f"{self.key}.{key}" if self.key else key)

    def wrong(self, reason: str, *, hint: str | None = None) -> InvalidValue:
        return InvalidValue(
            f"{self.key} in {self.file} has the wrong value: {reason}.", param=self.key, hint=hint
        )


def read_manifest(file: Path) -> ModelsManifest:
    """The manifest, empty when there is no such file; raises InvalidValue or UnknownParameter."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ModelsManifest()
    except OSError:
        pass  # said by whoever reads it
    # Most machines have no such file, and the parser takes its time to load.
    from ganglion.registry.naming.strict_yaml import read_yaml  # noqa: PLC0415

    tree = read_yaml(file)
    if tree is None:
        return ModelsManifest()
    if not isinstance(tree, dict):
        raise InvalidValue(f"{file} holds a {_kind(tree)}, expected a map of models.")
    entries: dict[str, ManifestEntry] = {}
    for key, value, place in _written(tree, _KeyPath(file, "")):
        if key in entries:
            raise InvalidValue(
                f"The model {key!r} stands twice in {file}: under models and at the top level.", param=key
            )
        entries[key] = _entry(key, value, place)
    _check_aliases(entries, file)
    return ModelsManifest(tuple(entries.values()))


def _written(tree: Mapping[str, object], top: _KeyPath) -> Iterator[tuple[str, object, _KeyPath]]:
    for key, value in tree.items():
        if key != "models":
            yield key, value, top.under(key)
        elif isinstance(value, dict):
            yield from ((name, inner, top.under("models").under(name)) for name, inner in value.items())
        elif value is not None:
            raise top.under("models").wrong(f"it is a {_kind(value)}, expected a map of models")


def _entry(key: str, value: object, place: _KeyPath) -> ManifestEntry:
    _check_name(key, place)
    match value:
        case str() if is_path(value):
            return ManifestEntry(key, path=_path(value, place))
        case str():
            hub = _hub(value, place)
            return ManifestEntry(key, hub=hub, quant=hub.quant)
        case dict():
            return _from_table(key, _read_table(value, _Table, place), place)
        case _:
            raise place.wrong(f"it is a {_kind(value)}, {_EXPECTED}")


def _from_table(key: str, table: _Table, place: _KeyPath) -> ManifestEntry:
    if table.path is not None and table.hub is not None:
        raise place.wrong("it has both path and hub, expected one of them")
    hub = None if table.hub is None else _hub(table.hub, place.under("hub"))
    written = None if hub is None else hub.quant
    quant = table.quant.upper() if table.quant else written
    if written and quant and canonical(written) != canonical(quant):
        raise place.under("quant").wrong(f"it is {quant}, and the hub id says {written}")
    return ManifestEntry(
        key=key,
        path=None if table.path is None else _path(table.path, place.under("path")),
        hub=None if hub is None else HubId(hub.repo, quant),
        quant=quant,
        engine=table.engine,
        context_length=table.context_length,
        kv_tokens=table.kv_tokens,
        parallel=table.parallel,
        is_pinned=table.pinned,
        priority=table.priority,
        keep_alive_s=_keep_alive_s(table.keep_alive, place.under("keep_alive")),
        aliases=_aliases(key, table.aliases, place.under("aliases")),
        sampling=_sampling(table.sampling or {}, place.under("sampling")),
        chat_template=_template(table.chat_template, place),
        mmproj=_projector(table.mmproj, place),
        gpu_layers=table.gpu_layers,
        layout=_layout(table, place),
    )


def _read_table(table: Mapping[str, object], struct: type[_T], place: _KeyPath) -> _T:
    known = {field.name: field.type for field in fields(struct)}
    values = {}
    for key, value in table.items():
        at = place.under(key)
        if key not in known:
            raise UnknownParameter(
                f"Unknown key {at.key} in {at.file}.", param=at.key, hint=_nearest(key, known, place)
            )
        try:
            values[key] = msgspec.convert(value, known[key])
        except (msgspec.ValidationError, OverflowError) as error:
            raise at.wrong(str(error)) from error
    return struct(**values)


def _nearest(key: str, known: Iterable[str], place: _KeyPath) -> str:
    if difflib.get_close_matches(place.key, ["models"], cutoff=0.8):
        return "Did you mean models?"
    names = list(known)
    nearest = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    return f"Did you mean {place.under(nearest[0]).key}?" if nearest else f"There are: {', '.join(names)}."


def _path(text: str, place: _KeyPath) -> Path:
    try:
        if "\0" in text:
            raise place.wrong("a path cannot hold a NUL")
        return real_file(place.file.parent / Path(text).expanduser())
    except RuntimeError as error:
        raise place.wrong(f"{text!r} is in the home of nobody") from error


def _hub(text: str, place: _KeyPath) -> HubId:
    hub = HubId.parse(text.strip())
    if hub is None:
        raise place.wrong(
            f"{text!r} is neither a path nor a hub id org/repo[:quant]",
            hint="A path starts with /, ./ or ~, or ends in .gguf. A second name is one of the aliases.",
        )
    return hub


def _template(text: str | None, place: _KeyPath) -> str | None:
    if text is None or "{" in text:
        return text
    return str(_path(text, place.under("chat_template")))


def _projector(text: str | None, place: _KeyPath) -> str | None:
    return text if text is None or text == "none" else str(_path(text, place.under("mmproj")))


def _layout(table: _Table, place: _KeyPath) -> DeviceLayout:
    chosen = {name: getattr(table, name) for name in LAYOUT_FIELDS}
    if table.devices is not None:
        at = place.under("devices")
        try:
            chosen["devices"] = normalized_devices(table.devices)
        except InvalidValue as error:
            raise at.wrong(error.message.rstrip("."), hint=error.hint) from error
    return DeviceLayout(**chosen)


def _keep_alive_s(written: float | str | None, place: _KeyPath) -> float | None:
    if written is None:
        return None
    if isinstance(written, str):
        if fold(written) == "forever":
            return math.inf
        number = f"{written}s" if written.strip()[-1:].isdigit() else written
        found = parse_duration_s(number)
        seconds = -1.0 if found is None else found
    else:
        seconds = float(written)
    if not 0 <= seconds < math.inf:
        raise place.wrong(f'it is {written!r}, expected seconds, "5m", "2h" or "forever"')
    return seconds


def _aliases(key: str, written: str | tuple[str, ...], place: _KeyPath) -> tuple[str, ...]:
    texts = (written,) if isinstance(written, str) else written
    aliases: dict[str, str] = {}
    for text in texts:
        alias = text.strip()
        if alias != CATCH_ALL:
            _check_name(alias, place)
        if fold(alias) != key:
            aliases.setdefault(fold(alias), alias)
    return tuple(aliases.values())


def _sampling(table: Mapping[str, object], place: _KeyPath) -> Sampling:
    return sampling_from(asdict(_read_table(table, _SamplingTable, place)))


def _check_name(name: str, place: _KeyPath) -> None:
    try:
        is_name = fold(ModelRef.parse(name).text) == fold(name) and name != CATCH_ALL
    except ModelNotFound:
        is_name = False
    if not is_name:
        hint = "Write it into the aliases of the model that is to answer." if name == CATCH_ALL else None
        raise InvalidValue(
            f"{place.key} in {place.file} is not a name that a request could use.",
            param=place.key,
            hint=hint or "A name has letters, digits and - . _ : /, at most 200 of them, and is not a path.",
        )


def _check_aliases(entries: Mapping[str, ManifestEntry], file: Path) -> None:
    owners = dict.fromkeys(entries, "the name of a model")
    for entry in entries.values():
        for alias in entry.aliases:
            other = owners.setdefault(fold(alias), f"an alias of {entry.key}")
            if other != f"an alias of {entry.key}":
                raise InvalidValue(
                    f"The alias {alias!r} of {entry.key} in {file} is already {other}.",
                    param=f"{entry.key}.aliases",
                )


def _kind(value: object) -> str:
    kinds = {dict: "map", list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    return kinds.get(type(value), "blank" if value is None else type(value).__name__)
