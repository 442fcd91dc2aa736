"""Models that come and go, as one engine: found by name, loaded once, evicted when room is needed.

Law: one load however many ask; loads take their turns in the order they were asked for; a model that is
pinned, or that somebody uses, is never evicted: the one whose turn it is waits until it is let go, while
newcomers of that model line up behind. A name that a request made up is held only while it is looked for:
when that fails it is remembered for whoever asked (`failures`), and listed for nobody.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, cast

from ganglion.core.attachments import attachments_of, check_attachments
from ganglion.core.delivery import Sink, generate_into, give, pulled
from ganglion.core.engine import (
    Activation,
    Embedded,
    Embedder,
    EmbedRequest,
    LoadOptions,
    LoadProgress,
    ManagedEngine,
    ModelState,
    PlacedImage,
    PromptReader,
    Ranked,
    RankRequest,
    ReadPrompt,
    SessionEngine,
    TokenizerInfo,
)
from ganglion.core.errors import (
    EngineUnavailable,
    GanglionError,
    InvalidValue,
    ModelLoading,
    ModelNotLoaded,
)
from ganglion.core.events import Event, Failed, Progress, TokenEvent
from ganglion.core.request import Request, TokenRequest, tenant_of
from ganglion.registry.loading.activation import ActivationQueue
from ganglion.registry.loading.candidate import Candidate
from ganglion.registry.loading.eviction import evict, unload_idle, unload_now
from ganglion.registry.loading.failures import RecentFailures
from ganglion.registry.loading.loader import ResidentLoader, is_over, without_traceback
from ganglion.registry.loading.resident import Resident
from ganglion.registry.loading.resident_table import NameLookup, ResidentTable, no_lookup
from ganglion.registry.naming.catalogue import HeldModelRef
from ganglion.registry.settings import ResidencySettings

_logger = logging.getLogger("ganglion.registry")

WAITING_LIMIT: Final = 1024
"""Requests that may wait for one model to load; further ones are told to come back."""


def _reader(engine: ManagedEngine) -> PromptReader:
    if isinstance(engine, PromptReader):
        return engine
    raise EngineUnavailable("The engine of this model does not show its prompts.")


def _embedder(engine: ManagedEngine) -> Embedder:
    if isinstance(engine, Embedder):
        return engine
    raise EngineUnavailable("The engine of this model makes no vectors.")


def _continuer(engine: ManagedEngine) -> SessionEngine:
    # Asking a protocol what it consists of takes 0.1 ms, here once a call.
    if hasattr(engine, "continue_tokens"):
        return cast(SessionEngine, engine)
    raise EngineUnavailable("The engine of this model does not keep token sessions.")


def _check_attachments(request: Request, resident: Resident) -> None:
    """Raise where a model cannot take what a prompt holds; what its file leaves open, it says once loaded."""
    if attachments_of(request.prompt) and (capabilities := resident.capabilities):
        check_attachments(request.prompt, request.model, capabilities)


def _refuse_another_engine(resident: Resident, options: LoadOptions) -> None:
    """Raise InvalidValue for an engine that cannot run the model, or another than it is loaded with."""
    if options.engine is None:
        return
    engine = resident.candidate.engine
    if options.engine not in (engine, *resident.candidate.engines):
        raise InvalidValue(
            f"The engine {options.engine!r} does not run {resident.id!r}; {engine!r} does.", param="engine"
        )
    loaded = {state.engine for state in resident.states()} if resident.status == "loaded" else set()
    if loaded and options.engine not in loaded:
        raise InvalidValue(
            f"{resident.id} is loaded with the engine {', '.join(sorted(loaded))}.",
            param="engine",
            hint="Unload it first.",
        )


def _refuse_another_context(resident: Resident, options: LoadOptions) -> None:
    """Raise InvalidValue for another context length than the loaded model has."""
    if options.context_length is None or resident.status != "loaded":
        return
    loaded = max(state.context_length for state in resident.states())
    if loaded != options.context_length:
        raise InvalidValue(
            f"{resident.id} is loaded with a context of {loaded} tokens.",
            param="context_length",
            hint="Unload it first.",
        )


def _refuse_another_layout(resident: Resident, options: LoadOptions) -> None:
    """Raise InvalidValue for another device layout than the model has, or is being loaded with."""
    if resident.layout is None:
        return
    field = options.layout.differs_from(resident.layout)
    if field is not None:
        raise InvalidValue(
            f"{resident.id} is loaded with {field!r} otherwise: {resident.layout.in_words()} on "
            f"{', '.join(resident.layout.devices or ('devices that were chosen for it',))}.",
            param=field,
            hint="Unload it first.",
        )


class Residency:
    """A ModelHolder over engines, by exact id, then alias in any case, then whatever `find` finds."""

    def __init__(
        self,
        warm: Sequence[Candidate],
        known: Sequence[Candidate] = (),
        *,
        free_bytes: Callable[[], int],
        find: NameLookup = no_lookup,
        settings: ResidencySettings | None = None,
    ) -> None:
        self._settings = settings or ResidencySettings()
        self._auto_load = self._settings.auto_load is not False
        self._table = ResidentTable(find)
        self._failures = RecentFailures()
        self._loader = ResidentLoader(self._table, self._failures, self._settings, free_bytes)
        self._activating = ActivationQueue()
        self._watch: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self.configure(warm, known)

    def configure(self, warm: Sequence[Candidate], known: Sequence[Candidate] = ()) -> None:
        """Hold these names from now on, and load those that are to be warm.

        What is loaded and no longer named stays until it is let go.
        """
        self._table.configure([*warm, *known])
        self._activating.configure([candidate.id for candidate in warm])
        if self._watch is not None and (self._warming is None or self._warming.done()):
            self._warming = asyncio.create_task(self._activate(), name="load configured models")

    # A life

    async def open(self) -> None:
        """Load the configured models one after another; raises the first error when all failed for good."""
        self._watch = asyncio.create_task(unload_idle(self._table), name="unload idle models")
        await self._activate()
        error = self._activating.final_error()
        if error is not None:
            raise error

    async def _activate(self) -> None:
        while (model_id := await self._activating.next()) is not None:
            resident = self._table.by_id.get(model_id)
            if resident is None:
                continue
            try:
                with resident.claimed() as claim:
                    await self._loader.ensure_loaded(resident, claim, LoadOptions(), is_patient=False)
            except GanglionError as error:
                self._activating.failed(model_id, error)
            else:
                self._activating.completed(model_id)

    async def close(self) -> None:
        """Close all; an engine that cannot be closed does not keep the others open."""
        self._loader.is_closing = True
        residents = list(self._table)
        tasks = [
            self._watch,
            self._warming,
            *(each.loading for each in residents),
            *(each.unloading for each in residents),
        ]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        closings = [unload_now(resident) for resident in self._table]
        for outcome in await asyncio.gather(*closings, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    # What is here

    def models(self) -> tuple[ModelState, ...]:
        """Every model that is held or was named, in that order."""
        is_settled = self._auto_load and not self._loader.is_closing and not self._activating.is_warming
        return tuple(
            state
            for resident in self._table
            if resident.is_listed
            for state in resident.states(loads_on_request=is_settled and self._would_load(resident))
        )

    def _would_load(self, resident: Resident) -> bool:
        """Whether a request would load it now; what failed is tried again for one, after its pause."""
        if self._activating.awaits(resident.id):
            return False  # a hub is asked for it now and then
        if resident.status == "failed":
            return resident.failure is None or is_over(resident.failure)
        return resident.status in ("unloaded", "loading", "downloading", "draining")

    def held(self) -> tuple[HeldModelRef, ...]:
        """The names that are taken, for whoever resolves others."""
        return self._table.held()

    def activation(self) -> Activation:
        """How far the configured models have come."""
        return self._activating.snapshot()

    # Answers

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer with the named model, loading it when it is not here."""
        return pulled(partial(self.generate_into, request))

    async def generate_into(self, request: Request, sink: Sink[Event]) -> None:
        """Deliver the named model's answer, loading it when it is not here."""
        try:
            resident = await self._resolve_for_request(request.model, request.tenant)
            _check_attachments(request, resident)
            with self._claimed(resident) as claim:
                if await self._must_wait(resident, claim):
                    await give(sink, Progress("queued", 0, resident.claims))
                    await self._loader.ensure_loaded(resident, claim, LoadOptions(), is_patient=True)
                assert resident.engine is not None
                _check_attachments(request, resident)
                await generate_into(resident.engine, replace(request, model=resident.id), sink)
        except GanglionError as error:
            await give(sink, Failed(error))

    async def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Run a token list on the named model, loading it when it is not here."""
        try:
            async with (
                self._serving(model, tenant_of(request.salt)) as (model_id, engine),
                aclosing(_continuer(engine).continue_tokens(model_id, request)) as events,
            ):
                async for event in events:
                    yield event
        except GanglionError as error:
            yield Failed(error)

    async def save_kv(self, model: str, salt: str, tokens: tuple[int, ...]) -> bytes:
        """The cached KV of some tokens, by the named model."""
        async with self._serving(model) as (model_id, engine):
            return await _continuer(engine).save_kv(model_id, salt, tokens)

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        """Put KV into the cache of the named model."""
        async with self._serving(model) as (model_id, engine):
            return await _continuer(engine).load_kv(model_id, salt, tokens, state)

    async def place_image(self, model: str, data: bytes, mime: str, *, tenant: str = "") -> PlacedImage:
        """What an image takes, by the named model."""
        async with self._serving(model, tenant) as (model_id, engine):
            return await _continuer(engine).place_image(model_id, data, mime, tenant=tenant)

    async def read(self, request: Request) -> ReadPrompt:
        """The prompt as the named model reads it."""
        async with self._serving(request.model, request.tenant) as (model_id, engine):
            if attachments_of(request.prompt):
                check_attachments(request.prompt, request.model, engine.models()[0].capabilities)
            return await _reader(engine).read(replace(request, model=model_id))

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        """Ids to text, by the named model."""
        async with self._serving(model, tenant) as (model_id, engine):
            return await _reader(engine).detokenize(model_id, tokens, tenant=tenant)

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        """The bytes of each token, by the named model."""
        async with self._serving(model, tenant) as (model_id, engine):
            return await _reader(engine).pieces(model_id, tokens, tenant=tenant)

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        """The tokenizer of the named model."""
        async with self._serving(model) as (model_id, engine):
            return await _reader(engine).tokenizer_info(model_id)

    async def embed(self, request: EmbedRequest) -> Embedded:
        """Embed with the named model."""
        async with self._serving(request.model, request.tenant) as (model_id, engine):
            return await _embedder(engine).embed(replace(request, model=model_id))

    async def rank(self, request: RankRequest) -> Ranked:
        """Rank with the named model."""
        async with self._serving(request.model, request.tenant) as (model_id, engine):
            return await _embedder(engine).rank(replace(request, model=model_id))

    @asynccontextmanager
    async def _serving(self, name: str, tenant: str = "") -> AsyncGenerator[tuple[str, ManagedEngine], None]:
        """The engine of the named model, held for as long as it is used."""
        resident = await self._resolve_for_request(name, tenant)
        with self._claimed(resident) as claim:
            if await self._must_wait(resident, claim):
                await self._loader.ensure_loaded(resident, claim, LoadOptions(), is_patient=True)
            assert resident.engine is not None
            yield resident.id, resident.engine

    async def _resolve_for_request(self, name: str, tenant: str) -> Resident:
        """The resident that a request means; raises where it may not be loaded for one."""
        resident = await self._table.resolve(name, may_find=self._auto_load, may_catch_all=True)
        if not self._auto_load and resident.status in ("unloaded", "failed"):
            if resident.error is not None:
                raise without_traceback(resident.error)
            raise ModelNotLoaded(
                resident.id,
                hint="Load it with `ganglion models load`: no request loads a model here (auto_load is off).",
            )
        if resident.is_established:
            return resident
        failure = self._failures.of(tenant, resident.id, asyncio.get_running_loop().time())
        if failure is not None and resident.loading is None:
            resident.failure = failure
        if resident.loading is None and (failure is None or is_over(failure)):
            self._table.check_lookups(resident, tenant)
        resident.tenants.add(tenant)
        return resident

    async def _must_wait(self, resident: Resident, claim: object) -> bool:
        """Whether the model is not here yet; raises when nobody may wait for it."""
        if resident.serves(claim) and not await self._loader.has_given_up(resident):
            return False
        if not self._auto_load or resident.claims > WAITING_LIMIT:
            raise ModelLoading(f"The model {resident.id!r} is still loading.", param="model")
        return True

    @contextmanager
    def _claimed(self, resident: Resident) -> Iterator[object]:
        """Use a model or wait for it; a name that was made up is gone with the last one who did."""
        try:
            with resident.claimed() as claim:
                yield claim
        finally:
            if not resident.is_established and not resident.claims and resident.loading is None:
                self._table.drop_invented(resident)

    # Loading and unloading

    async def load(self, name: str, options: LoadOptions) -> AsyncGenerator[LoadProgress, None]:
        """Load a model, joining whoever already does; ends when it is resident, raises why it cannot be."""
        full_name = f"{name}:{options.quant}" if options.quant is not None else name
        resident = await self._table.resolve(full_name, may_find=True)
        _refuse_another_engine(resident, options)
        _refuse_another_context(resident, options)
        if options.layout.demands:
            await asyncio.to_thread(resident.candidate.check, options)
        _refuse_another_layout(resident, options)
        if resident.loading is None:
            self._table.check_lookups(resident, None)
        resident.is_operator_requested = True
        if options.is_pinned is not None:
            resident.is_pinned = options.is_pinned
        if resident.status in ("unloaded", "failed"):
            self._loader.start(resident, options)  # also for somebody who does not wait for the first step
        with self._claimed(resident) as claim:
            loading = asyncio.ensure_future(
                self._loader.ensure_loaded(resident, claim, options, is_patient=False)
            )
            try:
                while not loading.done():
                    yield resident.progress()
                    news = asyncio.ensure_future(resident.wait_changed())
                    await asyncio.wait((loading, news), return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
                loading.result()
                yield resident.progress()
            finally:
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)

    async def unload(self, name: str, *, is_forced: bool) -> None:
        """Let a model go once its requests are finished; forced, they end with `Failed`."""
        resident = await self._table.resolve_held(name)
        loading = resident.loading
        if loading is not None:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        if resident.status in ("unloaded", "failed"):
            resident.set_status("unloaded")
        elif is_forced:
            await unload_now(resident)
        else:
            await evict(resident)
