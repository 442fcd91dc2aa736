"""The operator's configuration: one frozen Config from a TOML file, the environment and flags.

Law: flags win over `GANGLION_SECTION__KEY` over the file over the defaults, key by key; a key that does not
exist is an error that names where it stands and what it could have been. Each section is the settings type of
its room. A key is a field that the docstring of its class describes (`key: text`), which its flag's help and
docs/configuration.md repeat; a field that is not described there is the program's own.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

from ganglion.core.errors import InvalidValue, UnknownParameter
from ganglion.engines.settings import EngineSettings
from ganglion.gateway.settings import DeclaredNode, GatewaySettings
from ganglion.registry.files.whole_files import read_text
from ganglion.registry.settings import HubSettings, ResidencySettings
from ganglion.server.settings import JoinSettings, ServerSettings
from ganglion.sessions.settings import SessionSettings
from ganglion.store.settings import StoreSettings

PREFIX: Final = "GANGLION_"
_DESCRIBED: Final = re.compile(r"^(\w+): (.+(?:\n    .+)*)", re.MULTILINE)


class _LogSettings(Struct, frozen=True):
    """The log on stderr.

    level: The least severe messages that are logged to stderr.
    format: Log lines of text, or one JSON object a line.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Config(Struct, frozen=True):
    """Everything an operator can decide.

    nodes: Nodes that are declared.
    models: Models to load at the start: GGUF files, names from `models.yaml`, names of files on this
        machine, hub ids `org/repo[:quant]`, or `smollm2`; left out, the embedded model.
    folders: Folders with GGUF files besides `models` in the home folder and other programs' stores.
    """

    server: ServerSettings = ServerSettings()
    engine: EngineSettings = EngineSettings()
    log: _LogSettings = _LogSettings()
    residency: ResidencySettings = ResidencySettings()
    hub: HubSettings = HubSettings()
    store: StoreSettings = StoreSettings()
    sessions: SessionSettings = SessionSettings()
    gateway: GatewaySettings = GatewaySettings()
    nodes: tuple[DeclaredNode, ...] = ()
    join: JoinSettings = JoinSettings()
    models: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as it was written, and where."""

    key: str
    value: object
    source: str
    is_text: bool = False
    """Written where everything is text: numbers are read out of it and lists are split at commas."""


def settings_from(values: Mapping[str, object], source: str) -> tuple[Setting, ...]:
    """Values by their dotted keys, all from one place; None stands for one that was not given."""
    return tuple(Setting(key, value, source) for key, value in values.items() if value is not None)


def load(
    file: Path | None,
    environment: Mapping[str, str],
    settings: Iterable[Setting] = (),
    defaults: Mapping[str, object] | None = None,
) -> Config:
    """Put the layers together; `settings` are the flags that were given, and win.

    `defaults` are those of a command that wants others than the usual ones.
    """
    layers = [
        *(Setting(key, value, "the command") for key, value in (defaults or {}).items()),
        *(_from_file(file) if file is not None else ()),
        *_from_environment(environment),
        *settings,
    ]
    return _build({setting.key: _read(setting, _field(setting)) for setting in layers})


class _ConfigKey(NamedTuple):
    """One key: its field in a section, and its description."""

    field: FieldInfo
    description: str


@cache
def keys() -> Mapping[str, _ConfigKey]:
    """Every key by its dotted name."""
    return dict(_keys_of(Config, ""))


def _keys_of(section: type[Struct], prefix: str) -> Iterator[tuple[str, _ConfigKey]]:
    described = descriptions(section)
    for field in fields(section):
        key = f"{prefix}{field.encode_name}"
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            yield from _keys_of(field.type, f"{key}.")
        elif field.encode_name in described:
            yield key, _ConfigKey(field, described[field.encode_name])


def descriptions(section: type[Struct]) -> dict[str, str]:
    """The keys of a section and their descriptions: `key: text` in its docstring, further lines indented."""
    if section.__doc__ is None:
        raise InvalidValue(
            "This Python runs without docstrings (-OO), which describe the settings.", hint="Use -O at most."
        )
    found = _DESCRIBED.findall(cleandoc(section.__doc__))
    return {key: " ".join(text.split()) for key, text in found}


def value_type(field: FieldInfo) -> Any:
    """The type of a key's value, without bounds, description and the None that stands for left out."""
    return next(_plain(each) for each in _alternatives(field.type) if each is not type(None))


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of `X | None`, or the type itself."""
    return get_args(kind) if type(None) in get_args(kind) else (kind,)


def _plain(kind: Any) -> Any:
    return kind.__origin__ if hasattr(kind, "__metadata__") else kind


def _metas(field: FieldInfo) -> Iterator[Meta]:
    for each in _alternatives(field.type):
        yield from (meta for meta in getattr(each, "__metadata__", ()) if isinstance(meta, Meta))


def _from_file(file: Path) -> Iterator[Setting]:
    try:
        table = tomllib.loads(read_text(file, "The config file"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{file} is not TOML: {error}.") from error
    for key, value in _flatten(table, ""):
        yield Setting(key, _beside_file(_field_of(key), value, file.parent), str(file))


def _field_of(key: str) -> FieldInfo | None:
    known = keys().get(key)
    return None if known is None else known.field


def _beside_file(field: FieldInfo | None, value: object, folder: Path) -> object:
    """The value, with a path that is relative to the config file made one that holds anywhere."""
    if field is None:
        return value
    if isinstance(value, str) and any(
        (meta.extra or {}).get("is_relative_to_file") for meta in _metas(field)
    ):
        return str(folder / Path(value).expanduser())
    match get_args(value_type(field)), value:
        case (type() as each, *_), list(tables) if issubclass(each, Struct):
            columns = {column.encode_name: column for column in fields(each)}
            return [
                {name: _beside_file(columns.get(name), cell, folder) for name, cell in table.items()}
                if isinstance(table, dict)
                else table
                for table in tables
            ]
    return value


def _flatten(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _from_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    for name, value in sorted(environment.items()):
        key = name.removeprefix(PREFIX).lower().replace("__", ".")
        if name.startswith(PREFIX) and ("." in key or key == "models"):
            yield Setting(key, value, f"the environment variable {name}", is_text=True)


def _field(setting: Setting) -> FieldInfo:
    """The field that a dotted key names; raises UnknownParameter with the nearest key there is."""
    field = _field_of(setting.key)
    if field is not None:
        return field
    known = keys()
    nearest = difflib.get_close_matches(setting.key, known, n=1, cutoff=0.5)
    same_section = [key for key in known if key.startswith(f"{setting.key.partition('.')[0]}.")]
    hint = f"Did you mean {nearest[0]}?" if nearest else f"There are: {', '.join(same_section or known)}."
    raise UnknownParameter(f"Unknown key {setting.key} in {setting.source}.", param=setting.key, hint=hint)


def _read(setting: Setting, field: FieldInfo) -> object:
    value = setting.value
    if setting.is_text and value_type(field) == tuple[str, ...]:
        value = [part.strip() for part in str(value).split(",") if part.strip()]
    try:
        return msgspec.convert(value, field.type, strict=not setting.is_text)
    except msgspec.ValidationError as error:
        raise InvalidValue(
            f"{setting.key} in {setting.source} has the wrong value: {error}.", param=setting.key
        ) from error


def _build(values: Mapping[str, object]) -> Config:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        table = tree
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return msgspec.convert(tree, Config)
