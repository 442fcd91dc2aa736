"""Models that come and go, as one engine: found by name, loaded once, evicted when room is needed.

Law: one load however many ask; loads take their turns in the order they were asked for; a model that is
pinned, or that somebody uses, is never evicted: the one whose turn it is waits until it is let go, while
newcomers of that model line up behind. A name that a request made up is held only while it is looked for:
when that fails it is remembered for whoever asked (`failures`), and listed for nobody.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, cast

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
    EngineFailed,
    EngineUnavailable,
    GanglionError,
    InsufficientMemory,
    InvalidValue,
    ModelLoading,
    ModelNotFound,
    ModelNotLoaded,
    Overloaded,
    ShuttingDown,
)
from ganglion.core.events import Event, Failed, Progress, TokenEvent
from ganglion.core.request import Request, TokenRequest, tenant_of
from ganglion.registry.loading.activation import ActivationQueue
from ganglion.registry.loading.candidate import Candidate
from ganglion.registry.loading.eviction import available_bytes, cannot_fit, evictable, victim
from ganglion.registry.loading.failures import RecentFailure, RecentFailures, failed_again
from ganglion.registry.loading.resident import Resident
from ganglion.registry.naming.catalogue import HeldModelRef
from ganglion.registry.naming.manifest import CATCH_ALL
from ganglion.registry.naming.names import fold
from ganglion.registry.naming.resolver import nearest_names_hint
from ganglion.registry.settings import ResidencySettings

logger = logging.getLogger("ganglion.registry")

WAITING_LIMIT: Final = 1024
"""Requests that may wait for one model to load; further ones are told to come back."""
LOOKUPS: Final = 64
"""Models on their way that nobody knew before they were asked for."""
LOOKUPS_OF_TENANT: Final = 4
"""The same of one tenant: a hub takes its time to say that it does not know a name, and others wait too."""
WATCH_S: Final = 1.0
"""How often models are looked at that nobody has asked for."""


class NameLookup(Protocol):
    """Looks beyond what is held."""

    async def __call__(self, name: str, *, may_catch_all: bool) -> Candidate | str:
        """What a name means: another model, or the id of one that is held; raises ModelNotFound."""
        ...


async def _no_lookup(name: str, *, may_catch_all: bool) -> Candidate | str:
    raise ModelNotFound(name)


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


def _report(loop: asyncio.AbstractEventLoop, resident: Resident, done: int, total: int) -> None:
    loop.call_soon_threadsafe(resident.report, done, total)


def _without_traceback(error: GanglionError) -> GanglionError:
    """An error that was raised before, without the frames of whoever it was raised for: they would add up."""
    return error.with_traceback(None)


def _refuse_another_engine(resident: Resident, options: LoadOptions) -> None:
    """A model is run by the engine that reads its file, loaded or not."""
    engine = resident.candidate.engine
    if options.engine not in (None, engine):
        raise InvalidValue(
            f"The engine {options.engine!r} does not run {resident.id!r}; {engine!r} does.", param="engine"
        )


def _refuse_another_context(resident: Resident, options: LoadOptions) -> None:
    """What is loaded has the context it has."""
    if options.context_length is None or resident.status != "loaded":
        return
    loaded = max(state.context_length for state in resident.states())
    if loaded != options.context_length:
        raise InvalidValue(
            f"{resident.id} is loaded with a context of {loaded} tokens.",
            param="context_length",
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
        find: NameLookup = _no_lookup,
        settings: ResidencySettings | None = None,
    ) -> None:
        self._find = find
        self._free_bytes = free_bytes
        self._settings = settings or ResidencySettings()
        self._auto_load = self._settings.auto_load is not False
        self._residents: dict[str, Resident] = {}
        self._failures = RecentFailures()
        self._activating = ActivationQueue()
        self._turn = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self._is_closing = False
        self.configure(warm, known)

    def configure(self, warm: Sequence[Candidate], known: Sequence[Candidate] = ()) -> None:
        """Hold these names from now on, and load those that are to be warm.

        What is loaded and no longer named stays until it is let go.
        """
        candidates = [*warm, *known]
        ids = [candidate.id for candidate in candidates]
        for model_id in ids:
            if ids.count(model_id) > 1:
                raise InvalidValue(
                    f"Two models would be served as {model_id!r}.",
                    param="model",
                    hint="Give one of them another name with --served-name.",
                )
        for model_id in [each for each in self._residents if each not in ids]:
            if self._residents[model_id].status in ("unloaded", "failed"):
                del self._residents[model_id]
        for candidate in candidates:
            resident = self._residents.setdefault(candidate.id, Resident(candidate))
            resident.candidate, resident.is_pinned = candidate, candidate.is_pinned
            resident.is_established = True
        self._activating.configure([candidate.id for candidate in warm])
        if self._watch is not None and (self._warming is None or self._warming.done()):
            self._warming = asyncio.create_task(self._activate(), name="load configured models")

    # A life

    async def open(self) -> None:
        """Load the configured models one after another; raises the first error when all failed for good."""
        self._watch = asyncio.create_task(self._unload_idle(), name="unload idle models")
        await self._activate()
        hopeless = self._activating.hopeless()
        if hopeless is not None:
            raise hopeless

    async def _activate(self) -> None:
        while (model_id := await self._activating.next()) is not None:
            resident = self._residents.get(model_id)
            if resident is None:
                continue
            try:
                with resident.claimed() as claim:
                    await self._bring(resident, claim, LoadOptions(), is_patient=False)
            except GanglionError as error:
                self._activating.failed(model_id, error)
            else:
                self._activating.completed(model_id)

    async def close(self) -> None:
        """Close all; an engine that cannot be closed does not keep the others open."""
        self._is_closing = True
        residents = list(self._residents.values())
        tasks = [
            self._watch,
            self._warming,
            *(each.loading for each in residents),
            *(each.leaving for each in residents),
        ]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        closings = [self._close(resident) for resident in self._residents.values()]
        for outcome in await asyncio.gather(*closings, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    # What is here

    def models(self) -> tuple[ModelState, ...]:
        """Every model that is held or was named, in that order."""
        is_settled = self._auto_load and not self._is_closing and not self._activating.is_warming
        return tuple(
            state
            for resident in self._residents.values()
            if resident.is_listed
            for state in resident.states(loads_on_request=is_settled and self._would_load(resident))
        )

    def _would_load(self, resident: Resident) -> bool:
        """Whether a request would load it now; what failed is tried again for one, after its pause."""
        if self._activating.awaits(resident.id):
            return False  # a hub is asked for it now and then
        if resident.status == "failed":
            return resident.failure is None or self._is_over(resident.failure)
        return resident.status in ("unloaded", "loading", "downloading", "draining")

    def held(self) -> tuple[HeldModelRef, ...]:
        """The names that are taken, for whoever resolves others."""
        candidates = (resident.candidate for resident in self._residents.values())
        return tuple(HeldModelRef(each.id, each.aliases, each.path) for each in candidates)

    def activation(self) -> Activation:
        """How far the configured models have come."""
        return self._activating.lists()

    # Answers

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer with the model that is meant, loading it when it is not here."""
        try:
            resident = await self._asked_for(request.model, request.tenant)
            with self._claimed(resident) as claim:
                if await self._must_wait(resident, claim):
                    yield Progress("queued", 0, resident.claims)
                    await self._bring(resident, claim, LoadOptions(), is_patient=True)
                assert resident.engine is not None
                meant = replace(request, model=resident.id)
                async with aclosing(resident.engine.generate(meant)) as events:
                    async for event in events:
                        yield event
        except GanglionError as error:
            yield Failed(error)

    async def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Run a token list on the model that is meant, loading it when it is not here."""
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
        """The cached KV of some tokens, by the model that is meant."""
        async with self._serving(model) as (model_id, engine):
            return await _continuer(engine).save_kv(model_id, salt, tokens)

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        """Put KV into the cache of the model that is meant."""
        async with self._serving(model) as (model_id, engine):
            return await _continuer(engine).load_kv(model_id, salt, tokens, state)

    async def place_image(self, model: str, data: bytes, mime: str) -> PlacedImage:
        """What an image takes, by the model that is meant."""
        async with self._serving(model) as (model_id, engine):
            return await _continuer(engine).place_image(model_id, data, mime)

    async def read(self, request: Request) -> ReadPrompt:
        """The prompt as the model that is meant reads it."""
        async with self._serving(request.model, request.tenant) as (model_id, engine):
            return await _reader(engine).read(replace(request, model=model_id))

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        """Ids to text, by the model that is meant."""
        async with self._serving(model, tenant) as (model_id, engine):
            return await _reader(engine).detokenize(model_id, tokens, tenant=tenant)

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        """The bytes of each token, by the model that is meant."""
        async with self._serving(model, tenant) as (model_id, engine):
            return await _reader(engine).pieces(model_id, tokens, tenant=tenant)

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        """The tokenizer of the model that is meant."""
        async with self._serving(model) as (model_id, engine):
            return await _reader(engine).tokenizer_info(model_id)

    async def embed(self, request: EmbedRequest) -> Embedded:
        """Embed with the model that is meant."""
        async with self._serving(request.model, request.tenant) as (model_id, engine):
            return await _embedder(engine).embed(replace(request, model=model_id))

    async def rank(self, request: RankRequest) -> Ranked:
        """Rank with the model that is meant."""
        async with self._serving(request.model, request.tenant) as (model_id, engine):
            return await _embedder(engine).rank(replace(request, model=model_id))

    @asynccontextmanager
    async def _serving(self, name: str, tenant: str = "") -> AsyncGenerator[tuple[str, ManagedEngine], None]:
        """The engine of the model that is meant, held for as long as it is used."""
        resident = await self._asked_for(name, tenant)
        with self._claimed(resident) as claim:
            if await self._must_wait(resident, claim):
                await self._bring(resident, claim, LoadOptions(), is_patient=True)
            assert resident.engine is not None
            yield resident.id, resident.engine

    async def _asked_for(self, name: str, tenant: str) -> Resident:
        """The resident that a request means; raises where it may not be loaded for one."""
        resident = await self._meant(name, may_find=self._auto_load, may_catch_all=True)
        if not self._auto_load and resident.status in ("unloaded", "failed"):
            if resident.error is not None:
                raise _without_traceback(resident.error)
            raise ModelNotLoaded(
                resident.id,
                hint="Load it with `ganglion models load`: no request loads a model here (auto_load is off).",
            )
        if resident.is_established:
            return resident
        failure = self._failures.of(tenant, resident.id, asyncio.get_running_loop().time())
        if failure is not None and resident.loading is None:
            resident.failure = failure
        if resident.loading is None and (failure is None or self._is_over(failure)):
            self._check_lookups(resident, tenant)
        resident.asked_by.add(tenant)
        return resident

    def _check_lookups(self, resident: Resident, tenant: str | None) -> None:
        """Raise Overloaded where as many models are looked for as may be, for all or for one tenant."""
        if resident.is_established or resident.candidate.path is not None:
            return
        coming = [each for each in self._residents.values() if each.is_looked_for]
        of_tenant = sum(tenant in each.asked_by for each in coming)
        if len(coming) >= LOOKUPS or of_tenant >= LOOKUPS_OF_TENANT:
            self._let_go_of_invented(resident)
            raise Overloaded("Too many models are being looked for.", hint="Retry when they are found.")

    def _is_over(self, failure: RecentFailure) -> bool:
        return asyncio.get_running_loop().time() >= failure.until_s

    async def _must_wait(self, resident: Resident, claim: object) -> bool:
        """Whether the model is not here yet; raises when nobody may wait for it."""
        if resident.serves(claim) and not await self._has_given_up(resident):
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
            if not resident.claims and resident.loading is None:
                self._let_go_of_invented(resident)

    # Loading and unloading

    async def load(self, name: str, options: LoadOptions) -> AsyncGenerator[LoadProgress, None]:
        """Load a model, joining whoever already does; ends when it is resident, raises why it cannot be."""
        wanted = f"{name}:{options.quant}" if options.quant is not None else name
        resident = await self._meant(wanted, may_find=True)
        _refuse_another_engine(resident, options)
        _refuse_another_context(resident, options)
        if resident.loading is None:
            self._check_lookups(resident, None)
        resident.is_ordered = True
        if options.is_pinned is not None:
            resident.is_pinned = options.is_pinned
        if resident.status in ("unloaded", "failed"):
            self._loading(resident, options)  # also for somebody who does not wait for the first step
        with self._claimed(resident) as claim:
            bringing = asyncio.ensure_future(self._bring(resident, claim, options, is_patient=False))
            try:
                while not bringing.done():
                    yield resident.progress()
                    news = asyncio.ensure_future(resident.changed())
                    await asyncio.wait((bringing, news), return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
                bringing.result()
                yield resident.progress()
            finally:
                bringing.cancel()
                await asyncio.gather(bringing, return_exceptions=True)

    async def unload(self, name: str, *, is_forced: bool) -> None:
        """Let a model go once its requests are finished; forced, they end with `Failed`."""
        resident = await self._named(name)
        loading = resident.loading
        if loading is not None:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        if resident.status in ("unloaded", "failed"):
            resident.become("unloaded")
        elif is_forced:
            await self._close(resident)
        else:
            await self._evict(resident)

    async def _bring(
        self, resident: Resident, claim: object, options: LoadOptions, *, is_patient: bool
    ) -> None:
        """Return once the model serves the holder of the claim, raise why it cannot."""
        while not resident.serves(claim) or await self._has_given_up(resident):
            if self._is_closing:
                raise ShuttingDown("The server is shutting down.")
            failure = resident.failure
            if failure is not None and is_patient and resident.loading is None and not self._is_over(failure):
                raise _without_traceback(failure.error)
            if resident.status == "draining":
                await resident.changed()
                continue
            # Waited for and not awaited: whoever leaves, the others still wait for this load.
            await asyncio.wait((self._loading(resident, options),))
            if resident.error is not None:
                raise _without_traceback(resident.error)

    def _loading(self, resident: Resident, options: LoadOptions) -> asyncio.Task[None]:
        """The one load of a model, begun now unless it has been."""
        if resident.loading is None:
            resident.become("loading")
            load = self._load(resident, options)
            resident.loading = asyncio.create_task(load, name=f"load {resident.id}")
        return resident.loading

    async def _load(self, resident: Resident, options: LoadOptions) -> None:
        """One load, from wherever the file is to an open engine; how it went is the resident's status."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            fetch = resident.candidate.fetch
            if fetch is not None:
                await fetch(options, partial(_report, loop, resident))
                resident.become("loading")
            async with self._turn:
                engine = await self._build(resident, options)
                resident.engine = engine
                await engine.open()
            resident.become("loaded")
            self._failures.forget(resident.id)
            logger.info("%s loaded in %.1f s", resident.id, loop.time() - began_s)
        except GanglionError as error:
            await self._fail(resident, error)
        except asyncio.CancelledError:
            await self._close_engine(resident)
            resident.become("unloaded", ShuttingDown("The model was unloaded while it was loading."))
            raise
        except Exception as error:
            # The outermost door of a load: whatever the reason, this model failed and the others go on.
            logger.exception("%s failed to load", resident.id)
            await self._fail(resident, EngineFailed(f"The model could not be opened: {error}"))
        finally:
            resident.loading = None
            if resident.status != "loaded":
                self._let_go_of_invented(resident)

    async def _fail(self, resident: Resident, error: GanglionError) -> None:
        # What a client made up is no error of ours, and not worth a line each time somebody tries.
        is_ours = resident.is_listed or resident.candidate.path is not None
        logger.log(
            logging.ERROR if is_ours else logging.DEBUG, "%s failed to load: %s", resident.id, error.message
        )
        await self._close_engine(resident)
        now_s = asyncio.get_running_loop().time()
        failure = resident.failure = failed_again(error, resident.failure, now_s)
        resident.become("failed", error)
        for tenant in resident.asked_by:
            self._failures.note(tenant, resident.id, failure)

    def _let_go_of_invented(self, resident: Resident) -> None:
        """Hold a name no longer that was asked for in vain; whoever waits has the resident in hand."""
        if not resident.is_established and self._residents.get(resident.id) is resident:
            del self._residents[resident.id]

    async def _has_given_up(self, resident: Resident) -> bool:
        """Whether the engine of a loaded model is dead for good; it then counts as a load that failed."""
        assert resident.engine is not None
        reasons = [state.error for state in resident.engine.models() if state.status == "failed"]
        if reasons:
            await self._fail(resident, EngineFailed(f"The engine is down: {reasons[0] or 'it gave up'}."))
        return bool(reasons)

    # Room

    async def _build(self, resident: Resident, options: LoadOptions) -> ManagedEngine:
        """Make the engine, evicting others until it fits; raises InsufficientMemory when none can go."""
        while True:
            most = self._settings.max_models
            loaded = self._loaded()
            candidates = evictable(loaded, resident)
            leaving = victim(candidates)
            if most is not None and len(loaded) >= most:
                await self._evict(leaving or self._no_place(most))
                continue
            room = available_bytes(loaded, self._free_bytes(), self._settings.memory_bytes)
            try:
                return await resident.candidate.build(options, free_bytes=room)
            except InsufficientMemory as error:
                if leaving is None or cannot_fit(candidates, error):
                    raise
                await self._evict(leaving)

    def _loaded(self) -> list[Resident]:
        return [each for each in self._residents.values() if each.status in ("loaded", "draining")]

    def _no_place(self, most: int) -> Resident:
        raise Overloaded(
            f"{most} models are loaded, which is as many as this node holds, and none of them may go.",
            hint="Unload one, or raise residency.max_models.",
        )

    async def _evict(self, resident: Resident) -> None:
        """Return once a loaded model finished what it does and is closed."""
        if resident.leaving is None and resident.status == "loaded":
            logger.info("%s is let go, %d in flight", resident.id, resident.claims)
            resident.become("draining")
            resident.leaving = asyncio.create_task(self._leave(resident), name=f"unload {resident.id}")
        if resident.leaving is not None:
            # Waited for and not awaited: whoever gives up meanwhile does not leave it half gone.
            await asyncio.wait((resident.leaving,))

    async def _leave(self, resident: Resident) -> None:
        try:
            while not resident.is_idle:
                await resident.changed()
            await self._close(resident)
        finally:
            resident.leaving = None

    async def _close(self, resident: Resident) -> None:
        if resident.engine is not None:
            await self._close_engine(resident)
        if resident.status != "failed":
            resident.become("unloaded")

    async def _close_engine(self, resident: Resident) -> None:
        engine, resident.engine = resident.engine, None
        if engine is not None:
            await engine.close()

    async def _unload_idle(self) -> None:
        """Let go of models that nobody has asked for in their time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_S)
            for resident in self._loaded():
                keep_s = resident.candidate.keep_alive_s
                is_due = keep_s is not None and loop.time() - resident.idle_since_s >= keep_s
                if is_due and resident.is_idle and not resident.is_pinned and resident.status == "loaded":
                    with suppress(GanglionError):
                        await self._evict(resident)

    # Names

    async def _meant(self, name: str, *, may_find: bool, may_catch_all: bool = False) -> Resident:
        """The resident that a name means, one that is made now if need be; raises ModelNotFound."""
        resident = self._residents.get(name) or self._with_alias(fold(name))
        if resident is not None:
            return resident
        if may_find:
            with suppress(ModelNotFound):
                found = await self._find(name, may_catch_all=may_catch_all)
                model_id = found if isinstance(found, str) else found.id
                if isinstance(found, Candidate):
                    self._residents.setdefault(model_id, Resident(found))
                if model_id in self._residents:
                    return self._residents[model_id]
        resident = self._with_alias(CATCH_ALL) if may_catch_all else None
        if resident is None:
            raise self._unknown(name)
        return resident

    async def _named(self, name: str) -> Resident:
        """The resident that a name means, of those that are held; raises ModelNotFound."""
        resident = self._residents.get(name) or self._with_alias(fold(name))
        if resident is None:
            with suppress(ModelNotFound):
                found = await self._find(name, may_catch_all=False)
                resident = self._residents.get(found if isinstance(found, str) else found.id)
        if resident is None:
            raise self._unknown(name)
        return resident

    def _with_alias(self, alias: str) -> Resident | None:
        for resident in self._residents.values():
            if alias in map(fold, resident.candidate.aliases):
                return resident
        return None

    def _unknown(self, name: str) -> ModelNotFound:
        return ModelNotFound(name, hint=nearest_names_hint(name, [state.id for state in self.models()]))
