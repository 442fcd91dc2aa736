"""Builds the engine of a resolved model: fetch the file, read it, construct the engine."""

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never, cast

from msgspec import structs

from ganglion.cli.concepts.pack_files import FoundPack, fitting
from ganglion.cli.conversion import Conversion
from ganglion.cli.engine_selection import EngineSelection, formats_for, known_format
from ganglion.cli.model_layout import Cards, check_layout, lay_out, planned_layout
from ganglion.config import Config
from ganglion.core.device_layout import DeviceLayout
from ganglion.core.engine import LoadOptions, ManagedEngine
from ganglion.core.errors import EngineUnavailable, GanglionError, InvalidValue
from ganglion.core.model import ModelFacts
from ganglion.core.sampling import merge
from ganglion.engines.choice import EngineChoice, runners_of
from ganglion.engines.device_layout import refuse_unhonoured, refuse_where_none_honours
from ganglion.engines.resources import usable_video_bytes
from ganglion.engines.settings import EngineSettings
from ganglion.engines.table import ENGINES, EngineName
from ganglion.registry.files.formats import Format
from ganglion.registry.files.model_files import files_of, format_of, read_model_facts
from ganglion.registry.files.whole_files import read_text
from ganglion.registry.hub import embedded
from ganglion.registry.hub.download import Report
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.naming.manifest import ManifestEntry, ModelsManifest
from ganglion.registry.naming.resolver import (
    EmbeddedSource,
    HeldSource,
    HubSource,
    LocalFileSource,
    Resolution,
)
from ganglion.registry.stores.sighted import read_whole_facts
from ganglion.registry.stores.stored_models import StoredModel

if TYPE_CHECKING:
    from ganglion.registry.hub.client import Hub
    from ganglion.registry.hub.listing import HubFiles

_DOWNLOADS: Final = 4
"""Models fetched at once; further ones wait."""
_NO_ENTRY: Final = ManifestEntry(key="")

Bar = Callable[[str, int], AbstractContextManager[Report]]
"""Shows a download to people, given its title and size."""


@dataclass(frozen=True)  # no slots: what follows from the fields is made when it is first needed
class BuildContext:
    """What building any model needs."""

    config: Config
    home: Path
    hub: Callable[[], "Hub"]
    """Made when it is first needed: most starts fetch nothing."""
    bar: Bar | None = None
    is_kv_kept: bool = True
    free_video_bytes: Callable[[EngineName], tuple[int, ...] | None] = lambda _: None
    """What is free on the accelerators that an engine can use; None where there are none."""
    packs: tuple[FoundPack, ...] = ()
    """The concept packs that the operator named."""
    cards: Cards = tuple
    """The accelerators that engines may use."""
    stored: Callable[[Path], StoredModel | None] = lambda _: None
    """What the stores know of a model file."""
    download_pool: Executor = field(default_factory=lambda: ThreadPoolExecutor(_DOWNLOADS, "fetch"))
    """Downloads take minutes; in threads of their own they keep nobody else waiting for one."""

    @cached_property
    def selection(self) -> EngineSelection:
        """Which engine runs what."""
        return EngineSelection.on_this_machine(self.config.engine)

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats of models, those that are taken first in front."""
        return formats_for(self.config.engine.name)

    def find(self, repo: str, quant: str | None, revision: str | None = None) -> "HubFiles":
        """The files of a model at the hub; raises why there are none."""
        trusts_code = self.config.engine.vllm.trust_remote_code
        return self.hub().find(repo, quant, revision, formats=self.formats, trusts_code=trusts_code)

    def conversion(self, checkpoint: Path, engine: EngineName) -> Conversion:
        """The copy of a checkpoint for an engine that does not read it."""
        return Conversion.of(checkpoint, engine, self.home, self.selection.converter())


def candidate_of(
    resolution: Resolution, context: BuildContext, *, served_name: str | None = None
) -> Candidate:
    """The resolved model as a candidate that can be loaded."""
    builder = ModelBuilder(resolution, context, served_name or resolution.id)
    engine, engines = context.selection.expected(resolution, builder.path)
    entry = resolution.entry or _NO_ENTRY
    builder.refuse_unhonoured(entry.layout, LoadOptions(), under=f"{entry.key}.")
    facts = builder.facts_if_here()
    keep_alive_s = context.config.residency.keep_alive_s if entry.keep_alive_s is None else entry.keep_alive_s
    names = dict.fromkeys((*resolution.aliases, *((resolution.id,) if served_name is not None else ())))
    return Candidate(
        id=builder.model_id,
        build=builder.build,
        fetch=builder.fetch,
        path=builder.path,
        engine=engine,
        engines=engines,
        aliases=tuple(name for name in names if name != builder.model_id),
        origin=f"from {builder.origin}",
        reason=f"found by {resolution.steps[-1].tried}: {resolution.steps[-1].gave}",
        context_length=builder.context_of(facts, engine) if facts is not None else 0,
        created_s=facts.modified_s if facts is not None else 0,
        capabilities=facts.capabilities if facts is not None else (),
        sampling=merge(entry.sampling, facts.sampling) if facts is not None else entry.sampling,
        is_pinned=entry.is_pinned,
        priority=entry.priority,
        keep_alive_s=None if keep_alive_s is None or math.isinf(keep_alive_s) else keep_alive_s,
        layout=planned_layout(context.config.engine, cast(EngineName, engine), entry.layout),
        check=builder.check,
    )


def check_engines(manifest: ModelsManifest) -> None:
    """Raise what is wrong with an entry's engine in models.yaml, or what that engine does not honour."""
    for entry in manifest.entries:
        if entry.engine is not None and entry.engine not in runners_of(None):
            raise InvalidValue(
                f"models.yaml: {entry.key}.engine is {entry.engine!r}, which is no engine for model files.",
                param=f"{entry.key}.engine",
                hint=f"There are: {', '.join(runners_of(None))}.",
            )
        if entry.engine is not None:
            refuse_unhonoured(entry.engine, entry.layout, under=f"{entry.key}.")


class ModelBuilder:
    """Fetches and builds one model; the path of its file is known once it was fetched."""

    def __init__(self, resolution: Resolution, context: BuildContext, model_id: str) -> None:
        self._resolution = resolution
        self._context = context
        self.model_id = model_id
        self.path, self.origin = self._locate()

    def facts_if_here(self) -> ModelFacts | None:
        """The facts in the file; None while it is not on this machine or cannot be read."""
        try:
            return None if self.path is None else self._facts(self.path)
        except GanglionError:
            return None  # said when somebody wants it loaded

    def _facts(self, path: Path) -> ModelFacts:
        entry = self._resolution.entry or _NO_ENTRY
        named = entry.mmproj or self._context.config.engine.mmproj
        return read_whole_facts(path, named=named, find=self._context.stored)

    def context_of(self, facts: ModelFacts, engine: str) -> int:
        """The length of its context with this engine, unless a load asks for another."""
        kind = ENGINES[cast(EngineName, engine)]
        return kind.context_of(self._asked_context(LoadOptions()), facts.context_length)

    async def fetch(self, options: LoadOptions, report: Report) -> None:
        """Download the model if it is missing, hash it if it changed since it was verified, and convert it
        where its engine needs that."""
        cancelled = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(
                self._context.download_pool, self._fetch, options, report, cancelled.is_set
            )
        finally:
            # A thread cannot be cancelled; it asks, and stops between two chunks.
            cancelled.set()

    async def build(self, options: LoadOptions, *, free_bytes: int) -> ManagedEngine:
        """Construct the engine, if it fits into memory."""
        return await asyncio.to_thread(self._build, options, free_bytes)

    def check(self, options: LoadOptions) -> None:
        """Raise what the engine or this machine does not honour of the devices that a load asks for."""
        self.refuse_unhonoured(options.layout, options)
        engines = self._engines(options)
        if len(engines) == 1:
            asked = self._asked_layout(options)
            check_layout(self._context.config.engine, engines[0], asked, self._context.cards)

    def refuse_unhonoured(self, layout: DeviceLayout, options: LoadOptions, *, under: str = "") -> None:
        """Raise UnsupportedParameter where no engine that may run the model honours a layout."""
        if layout.demands:
            refuse_where_none_honours(self._engines(options), layout, under=under)

    def _engines(self, options: LoadOptions) -> tuple[EngineName, ...]:
        """The engine that a load takes; every one that it might be while only a hub knows the files."""
        entry = self._resolution.entry or _NO_ENTRY
        model_format = known_format(self._resolution, self.path)
        named = options.engine or entry.engine
        try:
            if model_format is not None:
                choose = self._context.selection.choose
                return (choose(self.model_id, model_format, self._resolution.entry, options).engine,)
        except EngineUnavailable:
            pass  # said by the load
        return tuple(name for name in runners_of(model_format) if named in (None, name))

    def _asked_layout(self, options: LoadOptions) -> DeviceLayout:
        entry = self._resolution.entry or _NO_ENTRY
        return options.layout.over(entry.layout)

    def _locate(self) -> tuple[Path | None, str]:
        source = self._resolution.source
        match source:
            case LocalFileSource(path=path):
                return path, str(path)
            case EmbeddedSource(model=model):
                found = embedded.find(model, self._context.home / "cache")
                return (None, "the package index or the hub") if found is None else (found.path, found.origin)
            case HubSource(repo=repo):
                return None, f"the hub, {repo}"
            case HeldSource(id=model_id):
                raise InvalidValue(f"{model_id} is held already.")
            case _:
                assert_never(source)

    def _fetch(self, options: LoadOptions, report: Report, is_cancelled: Callable[[], bool]) -> None:
        self._bring(options, report, is_cancelled)
        assert self.path is not None
        self._context.selection.check_code(self.path)
        choice = self._choice(options, self.path)
        conversion = self._context.conversion(self.path, choice.engine) if choice.is_converted else None
        if conversion is not None and not conversion.is_here:
            with self._bar(conversion.size_bytes, report) as shown:
                conversion.run(shown, is_cancelled)

    def _bring(self, options: LoadOptions, report: Report, is_cancelled: Callable[[], bool]) -> None:
        """Have the model's files here, whole."""
        source = self._resolution.source
        match source:
            case HubSource(repo=repo, quant=quant):
                hub = self._context.hub()
                files = self._context.find(repo, quant)
                # Before anything is fetched: a model that nothing here runs is not worth its download.
                self._context.selection.choose(self.model_id, files.format, self._resolution.entry, options)
                if files.is_cached:
                    self.path = hub.fetch(files, report, is_cancelled)
                else:
                    with self._bar(files.size_bytes, report) as shown:
                        self.path = hub.fetch(files, shown, is_cancelled)
            case EmbeddedSource(model=model) if self.path is None:
                with self._bar(model.size_bytes, report) as shown:
                    cache = self._context.home / "cache"
                    self.path = embedded.fetch(
                        model, cache, hub=self._context.hub().endpoint, report=shown
                    ).path
            case EmbeddedSource(model=model):
                assert self.path is not None
                if self.path.parent == self._context.home / "cache":  # an installed one was pip's to check
                    self._context.hub().receipts.verify(self.path, is_full=False, digest=model.sha256)
            case _:
                assert self.path is not None
                receipts = self._context.hub().receipts
                for part in files_of(self.path):
                    receipts.verify(part, is_full=False)

    @contextmanager
    def _bar(self, size_bytes: int, report: Report) -> Iterator[Report]:
        """The report, which also moves the progress bar where there is one."""
        if self._context.bar is None:
            yield report
            return
        with self._context.bar(self.model_id, size_bytes) as shown:

            def report_and_show(done: int, total: int) -> None:
                report(done, total)
                shown(done, total)

            yield report_and_show

    def _gpu_layers(self, entry: ManifestEntry, engine: EngineName) -> int | None:
        """Layers to put on a GPU, for an engine that leaves others on the processor."""
        configured = 0 if ENGINES[engine].fills_gpu else self._context.config.engine.gpu_layers
        return configured if entry.gpu_layers is None else entry.gpu_layers

    def _choice(self, options: LoadOptions, path: Path) -> EngineChoice:
        return self._context.selection.choose(self.model_id, format_of(path), self._resolution.entry, options)

    def _asked_context(self, options: LoadOptions) -> int | None:
        entry = self._resolution.entry or _NO_ENTRY
        return options.context_length or entry.context_length or self._context.config.engine.context

    def _build(self, options: LoadOptions, free_bytes: int) -> ManagedEngine:
        from ganglion.engines.supervision.watchdog import WorkerLimits

        assert self.path is not None
        choice = self._choice(options, self.path)
        path = self.path
        if choice.is_converted:
            path = self._context.conversion(path, choice.engine).target
        config, entry = self._context.config.engine, self._resolution.entry or _NO_ENTRY
        residency = self._context.config.residency
        facts = self._facts(path)
        is_kv_kept = self._context.is_kv_kept and residency.keep_kv_mb > 0
        settings = structs.replace(
            config,
            model_id=self.model_id,
            name=choice.engine,
            context=self._asked_context(options),
            kv_tokens=entry.kv_tokens or config.kv_tokens,
            parallel=entry.parallel or config.parallel,
            gpu_layers=self._gpu_layers(entry, choice.engine),
            chat_template=chat_template(entry.chat_template or config.chat_template),
            limits=WorkerLimits(hang_s=config.hang_s),
            kv_folder=str(self._context.home / "cache" / "kv") if is_kv_kept else None,
            kv_folder_bytes=residency.keep_kv_mb * 2**20,
            concepts=fitting(self._context.packs, facts, self.model_id),
        )
        settings = lay_out(
            settings,
            choice.engine,
            self._asked_layout(options),
            self._context.cards,
            weights_bytes=facts.size_bytes,
        )
        own = read_model_facts(self.path).sampling if choice.is_converted else facts.sampling
        facts = replace(facts, sampling=merge(entry.sampling, own))
        kind = ENGINES[choice.engine]
        may_accelerate = kind.fills_gpu or settings.gpu_layers != 0
        free = self._context.free_video_bytes(choice.engine) if may_accelerate else None
        split = [float(share) for share in (settings.gpu_split or "").split(",") if share]
        video = None if free is None else usable_video_bytes(free, split, settings.gpu_main)
        build = kind.load()
        return build(facts, settings, free_memory=free_bytes, free_video_memory=video)


def candidate_without_file(name: str, settings: EngineSettings) -> Candidate:
    """A model of an engine that reads no files."""
    kind = ENGINES[settings.name]
    make = partial(
        kind.load(),
        None,
        structs.replace(settings, model_id=name),
        free_memory=None,
        free_video_memory=None,
    )
    return Candidate(
        name,
        build_without_options(make),
        engine=settings.name,
        origin=kind.summary,
        context_length=make().models()[0].context_length,
        check=lambda options: refuse_unhonoured(settings.name, options.layout),
    )


def chat_template(written: str | None) -> str | None:
    """The template itself, read from its file unless it was written out."""
    if written is None or "{" in written:
        return written
    return read_text(
        Path(written).expanduser(),
        "The chat template",
        param="chat_template",
        hint="--chat-template takes a Jinja file, or the template itself.",
    )
