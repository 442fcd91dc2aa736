"""Builds one engine over all models of this machine from a Config."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from ganglion import config as configuration
from ganglion.cli.concepts.pack_files import find_packs, refuse_if_one_fits_none
from ganglion.cli.engine_selection import formats_for
from ganglion.cli.model_builder import (
    Bar,
    BuildContext,
    candidate_of,
    candidate_without_file,
    chat_template,
    check_engines,
)
from ganglion.cli.model_layout import Cards
from ganglion.cli.system.library_choice import settle_library
from ganglion.config import Config
from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.core.home import home_folder
from ganglion.engines.resources import free_bytes
from ganglion.engines.table import ENGINES, EngineName
from ganglion.registry.files.model_files import read_model_facts
from ganglion.registry.hub.embedded import SMOLLM2
from ganglion.registry.loading.candidate import Candidate
from ganglion.registry.loading.residency import Residency
from ganglion.registry.naming.catalogue import HeldModelRef
from ganglion.registry.naming.names import linked_name, operator_path
from ganglion.registry.naming.resolver import HeldSource, Resolution, explain, resolve
from ganglion.registry.stores.finder import ModelFinder
from ganglion.registry.stores.stored_models import StoredModel

if TYPE_CHECKING:
    from ganglion.registry.hub.client import Hub


def hub_of(config: Config, home: Path) -> "Hub":
    """The hub that the environment and the config name."""
    from ganglion.registry.hub.client import Hub

    environment = dict(os.environ)
    if config.hub.endpoint is not None:
        environment["HF_ENDPOINT"] = config.hub.endpoint
    if config.hub.offline:
        environment["HF_HUB_OFFLINE"] = "1"
    return Hub.from_environment(environment, home)


def finder_of(config: Config, home: Path) -> ModelFinder:
    """Where models are looked for."""
    folders = [Path(folder).expanduser() for folder in config.folders]
    return ModelFinder(
        home,
        os.environ,
        folders=folders,
        may_download=config.hub.download,
        formats=formats_for(config.engine.name),
    )


@dataclass(frozen=True, slots=True)
class _RequestedModels:
    """The models that a command line names, in order, and their served names."""

    names: tuple[str, ...]
    served_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.served_names) > len(self.names):
            raise InvalidValue(
                f"{len(self.served_names)} served names were given for {len(self.names)} models.",
                param="served_name",
            )

    def served_name(self, number: int) -> str | None:
        """The served name of the model at this position; None for its own name."""
        return self.served_names[number] if number < len(self.served_names) else None


@dataclass(frozen=True, slots=True)
class _ConfiguredModels:
    """Every model that the operator named."""

    warm: tuple[Candidate, ...]
    """Loaded at the start."""
    known: tuple[Candidate, ...]
    """Loaded when somebody asks for them."""


@dataclass(frozen=True, slots=True)
class _Composition:
    """The engine, and for people where each model comes from."""

    engine: Residency
    origins: tuple[str, ...]


def compose(
    config: Config,
    names: Sequence[str],
    served_names: Sequence[str],
    *,
    bar: Bar | None = None,
    is_kv_kept: bool = False,
    free_video_bytes: Callable[[EngineName], tuple[int, ...] | None] = lambda _: None,
    cards: Cards = tuple,
) -> _Composition:
    """An engine that holds the named models and finds others by name; nothing is opened yet."""
    home = home_folder(os.environ)
    finder = finder_of(config, home)
    hub = cache(lambda: hub_of(config, home))
    packs = find_packs(config.engine.concepts, home)
    stored = partial(_stored, finder)
    context = BuildContext(config, home, hub, bar, is_kv_kept, free_video_bytes, packs, cards, stored)
    models = _models(names, served_names, finder, context)
    chat_template(config.engine.chat_template)
    settle_library()
    _refuse_if_none_can_be_read(models.warm)
    refuse_if_one_fits_none(packs, models.warm)

    async def find(name: str, *, may_catch_all: bool) -> Candidate | str:
        return await asyncio.to_thread(_found, name, engine.held(), finder, context, may_catch_all)

    engine = Residency(
        models.warm,
        models.known,
        free_bytes=free_bytes,
        find=find,
        settings=structs.replace(config.residency, auto_load=auto_loads(config)),
    )
    return _Composition(engine, tuple(f"{model.id} {model.origin}" for model in models.warm))


@asynccontextmanager
async def open_engine(
    *models: str,
    served_names: Sequence[str] = (),
    config: Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> AsyncGenerator[Residency, None]:
    """The engine of `ganglion serve` without its server, for `build_app` or for asking it directly.

    It finds models by name as the command does: the hub, `models.yaml`, stored files, the embedded model.
    `models` are loaded when the context is entered; left out, the config's, else the embedded one. `config`
    is a config.toml (left out, the one in the home folder), `settings` are keys of it that win over the file,
    as in `{"engine.context": 4096}`. Raises what is wrong with them, or why no model could be loaded. Leaving
    the context closes everything.
    """
    from ganglion.cli.flags import OutputFlags, load_config
    from ganglion.cli.system.this_machine import ThisMachine

    def composed() -> _Composition:
        given = configuration.settings_from(settings or {}, "the settings given")
        machine = ThisMachine()
        return compose(
            load_config(OutputFlags(config=config), given),
            models,
            served_names,
            is_kv_kept=True,
            free_video_bytes=machine.free_video_bytes,
            cards=machine.cards,
        )

    engine = (await asyncio.to_thread(composed)).engine
    try:
        await engine.open()
        yield engine
    finally:
        await engine.close()


def auto_loads(config: Config) -> bool:
    """Whether a request loads the model it names; on a node that joins a gateway, only if configured."""
    auto_load = config.residency.auto_load
    return not config.join.urls if auto_load is None else auto_load


def models_of(config: Config, names: Sequence[str], served_names: Sequence[str]) -> _ConfiguredModels:
    """The models that a configuration names, read anew from disk; raises what is wrong with it."""
    home = home_folder(os.environ)
    hub = cache(lambda: hub_of(config, home))
    packs = find_packs(config.engine.concepts, home)
    finder = finder_of(config, home)
    stored = partial(_stored, finder)
    context = BuildContext(config, home, hub, is_kv_kept=True, packs=packs, stored=stored)
    return _models(names, served_names, finder, context)


def _stored(finder: ModelFinder, path: Path) -> StoredModel | None:
    return finder.catalogue().stored_index.by_path.get(path)


def _models(
    names: Sequence[str], served_names: Sequence[str], finder: ModelFinder, context: BuildContext
) -> _ConfiguredModels:
    """Warm are those that are named, else the config's, else the embedded one; and what is pinned."""
    config = context.config
    if not ENGINES[config.engine.name].formats:
        named = served_names or names or [config.engine.name]
        return _ConfiguredModels(tuple(candidate_without_file(name, config.engine) for name in named), ())
    asked = _RequestedModels(tuple(names or config.models or [SMOLLM2.id]), tuple(served_names))
    catalogue = finder.catalogue()
    check_engines(catalogue.manifest)
    warm = []
    for number, name in enumerate(asked.names):
        path = operator_path(name)
        resolution = resolve(name if path is None else str(path), catalogue, may_be_path=True)
        own = None if path is None or resolution.entry is not None else linked_name(name)
        warm.append(candidate_of(resolution, context, served_name=asked.served_name(number) or own))
    taken = {name for candidate in warm for name in (candidate.id, *candidate.aliases)}
    resolutions = [explain(entry.key, catalogue, may_be_path=False) for entry in catalogue.manifest.entries]
    known = [
        candidate_of(resolution, context)
        for resolution in resolutions
        if isinstance(resolution, Resolution) and resolution.id not in taken
    ]
    others = {candidate.id: candidate for candidate in known}.values()
    return _ConfiguredModels(
        (*warm, *(each for each in others if each.is_pinned)),
        tuple(each for each in others if not each.is_pinned),
    )


def _refuse_if_none_can_be_read(models: Sequence[Candidate]) -> None:
    """Raise the first reason when every file is here and none is a model: there is nothing to wait for."""
    errors: list[GanglionError] = []
    for model in models:
        if model.path is None or model.context_length:
            return
        try:
            read_model_facts(model.path)
            return
        except GanglionError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _found(
    name: str,
    held: tuple[HeldModelRef, ...],
    finder: ModelFinder,
    context: BuildContext,
    may_catch_all: bool,
) -> Candidate | str:
    resolution = resolve(
        name, finder.catalogue().with_held(held), may_be_path=False, may_catch_all=may_catch_all
    )
    if isinstance(resolution.source, HeldSource):
        return resolution.source.id
    return candidate_of(resolution, context)
