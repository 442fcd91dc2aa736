"""From a Config to an engine: which files are meant, which engine runs each, all of them as one."""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, assert_never

from ganglion import config as configuration
from ganglion.cli.options import OutputFlags
from ganglion.config import Config, EngineConfig
from ganglion.core.engine import ManagedEngine
from ganglion.core.errors import EngineUnavailable, InvalidValue, ModelNotFound
from ganglion.registry import embedded
from ganglion.registry.catalogue import Catalogue
from ganglion.registry.embedded import EmbeddedModel, Found
from ganglion.registry.gguf import read_facts
from ganglion.registry.names import operator_path, real_file
from ganglion.registry.residency import Residents
from ganglion.registry.resolver import EmbeddedSource, FileSource, HeldSource, HubSource, resolve
from ganglion.registry.stored import StoredModel

ENGINES: Final = {
    "echo": "ganglion.engines.echo:EchoEngine",
    "llama": "ganglion.engines.llama.engine:LlamaEngine",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model that was asked for, as a file with a name."""

    id: str
    aliases: tuple[str, ...]
    path: Path
    origin: str


@dataclass(frozen=True, slots=True)
class Composition:
    """The engine, and for people where each model came from."""

    engine: Residents
    origins: tuple[str, ...]


def load_config(output: OutputFlags, flags: Mapping[str, object]) -> Config:
    """The config of this invocation."""
    file = output.config
    if file is None:
        default = configuration.home(os.environ) / "config.toml"
        file = default if default.is_file() else None
    return configuration.load(file, os.environ, {**flags, **output.settings()})


def compose(config: Config, names: Sequence[str], served_names: Sequence[str]) -> Composition:
    """Resolve the named models and put an engine in front of each; nothing is opened yet."""
    if config.engine.name == "echo":
        return _echoes(config, served_names or names or ["echo"])
    names = names or config.models or [embedded.SMOLLM2.id]
    if len(served_names) > len(names):
        raise InvalidValue(
            f"{len(served_names)} served names were given for {len(names)} models.", param="served_name"
        )
    home = configuration.home(os.environ)
    chosen = [choose(name, home) for name in names]
    engines = [
        _llama(config.engine, model, served_names[number] if number < len(served_names) else model.id)
        for number, model in enumerate(chosen)
    ]
    return Composition(Residents(engines), tuple(f"{model.id} from {model.origin}" for model in chosen))


def choose(name: str, home: Path) -> Chosen:
    """The file that a name means, fetched if it is the embedded model and not here yet."""
    path = operator_path(name)
    catalogue = Catalogue(stored=_stored_in(home / "models"))
    resolution = resolve(name if path is None else str(path), catalogue, may_be_path=True)
    source = resolution.source
    match source:
        case FileSource(path=path):
            return Chosen(resolution.id, resolution.aliases, path, str(path))
        case EmbeddedSource(model=model):
            found = _find_or_fetch(model, home / "cache")
            return Chosen(resolution.id, resolution.aliases, found.path, found.origin)
        case HeldSource() | HubSource():
            raise ModelNotFound(name)
        case _:
            assert_never(source)


def _stored_in(folder: Path) -> tuple[StoredModel, ...]:
    try:
        files = sorted([*folder.glob("*.gguf"), *folder.glob("*/*.gguf")])
        return tuple(
            StoredModel(file.stem, real_file(file), (file,), "models folder", file.stat().st_size)
            for file in files
        )
    except OSError:
        return ()


def _find_or_fetch(model: EmbeddedModel, cache: Path) -> Found:
    found = embedded.find(model, cache)
    if found is not None:
        return found
    from ganglion.cli.progress import download_bar
    from ganglion.cli.talk import say

    say(f"fetching the embedded model {model.id} ({model.size_bytes // 1_000_000} MB, once)")
    hub = os.environ.get("HF_ENDPOINT") or embedded.HUB
    with download_bar(model.id, model.size_bytes) as report:
        return embedded.fetch(model, cache, hub=hub, report=report)


def _echoes(config: Config, names: Sequence[str]) -> Composition:
    from ganglion.engines.echo import EchoSettings

    engine_class = load_class(ENGINES["echo"])
    engines: list[ManagedEngine] = [
        engine_class(
            EchoSettings(
                model_id=name,
                context=config.engine.context or EchoSettings().context,
                parallel=config.engine.parallel,
                queue_limit=config.engine.queue_limit,
                allow_directives=True,
            )
        )
        for name in names
    ]
    return Composition(Residents(engines), tuple(f"{name} repeats what it is told" for name in names))


def _llama(config: EngineConfig, model: Chosen, served_name: str) -> ManagedEngine:
    from ganglion.engines.llama.settings import LlamaSettings

    facts = read_facts(model.path)
    settings = LlamaSettings(
        model_id=served_name,
        aliases=tuple(alias for alias in model.aliases if alias != served_name),
        threads=config.threads,
        context=config.context,
        kv_tokens=config.kv_tokens,
        parallel=config.parallel,
        queue_limit=config.queue_limit,
        kv_type=config.kv_type,
        gpu_layers=config.gpu_layers,
        chat_template=chat_template(config.chat_template),
        is_deterministic=config.deterministic,
    )
    engine: ManagedEngine = load_class(ENGINES["llama"])(facts, settings)
    return engine


def load_class(place: str) -> Callable[..., Any]:
    """The class at "module:Class", imported now and not before; raises EngineUnavailable."""
    module, _, name = place.partition(":")
    try:
        loaded: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise EngineUnavailable(
            f"The engine in {module} cannot be loaded: {error}.",
            hint="Reinstall ganglion with its dependencies.",
        ) from error
    return loaded


def chat_template(written: str | None) -> str | None:
    """The template itself, read from its file unless it was written out."""
    if written is None or "{" in written:
        return written
    path = Path(written).expanduser()
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidValue(
            f"The chat template {path} could not be read: {reason}.",
            param="chat_template",
            hint="--chat-template takes a Jinja file, or the template itself.",
        ) from error
