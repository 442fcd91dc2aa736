"""Loads models: fetches the file, evicts others until it fits, opens the engine.

Law: one load however many ask; loads take their turns in the order they were asked for.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from ganglion.core.engine import LoadOptions, ManagedEngine
from ganglion.core.errors import EngineFailed, GanglionError, InsufficientMemory, Overloaded, ShuttingDown
from ganglion.registry.loading.eviction import (
    available_bytes,
    cannot_fit,
    close_engine,
    evict,
    evictable,
    victim,
)
from ganglion.registry.loading.failures import RecentFailure, RecentFailures, failed_again
from ganglion.registry.loading.resident import Resident
from ganglion.registry.loading.resident_table import ResidentTable
from ganglion.registry.settings import ResidencySettings

_logger = logging.getLogger("ganglion.registry")


class ResidentLoader:
    """Loads the residents of one table."""

    def __init__(
        self,
        table: ResidentTable,
        failures: RecentFailures,
        settings: ResidencySettings,
        free_bytes: Callable[[], int],
    ) -> None:
        self._table = table
        self._failures = failures
        self._settings = settings
        self._free_bytes = free_bytes
        self._load_lock = asyncio.Lock()
        self.is_closing = False

    async def ensure_loaded(
        self, resident: Resident, claim: object, options: LoadOptions, *, is_patient: bool
    ) -> None:
        """Return once the model serves the holder of the claim, raise why it cannot."""
        while not resident.serves(claim) or await self.has_given_up(resident):
            if self.is_closing:
                raise ShuttingDown("The server is shutting down.")
            failure = resident.failure
            if failure is not None and is_patient and resident.loading is None and not is_over(failure):
                raise without_traceback(failure.error)
            if resident.status == "draining":
                await resident.wait_changed()
                continue
            # Waited for and not awaited: whoever leaves, the others still wait for this load.
            await asyncio.wait((self.start(resident, options),))
            if resident.error is not None:
                raise without_traceback(resident.error)

    def start(self, resident: Resident, options: LoadOptions) -> asyncio.Task[None]:
        """The one load of a model, begun now unless it has been."""
        if resident.loading is None:
            resident.begin(options)
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
                resident.set_status("loading")
            async with self._load_lock:
                engine = await self._build(resident, options)
                resident.engine = engine
                await engine.open()
            resident.set_status("loaded")
            self._failures.forget(resident.id)
            _logger.info("%s loaded in %.1f s", resident.id, loop.time() - began_s)
        except GanglionError as error:
            await self._fail(resident, error)
        except asyncio.CancelledError:
            await close_engine(resident)
            resident.set_status("unloaded", ShuttingDown("The model was unloaded while it was loading."))
            raise
        except Exception as error:
            # The outermost handler of a load: whatever the reason, this model failed and the others go on.
            _logger.exception("%s failed to load", resident.id)
            await self._fail(resident, EngineFailed(f"The model could not be opened: {error}"))
        finally:
            resident.loading = None
            if resident.status != "loaded":
                self._table.drop_invented(resident)

    async def _fail(self, resident: Resident, error: GanglionError) -> None:
        # What a client made up is no error of ours, and not worth a line each time somebody tries.
        is_ours = resident.is_listed or resident.candidate.path is not None
        _logger.log(
            logging.ERROR if is_ours else logging.DEBUG, "%s failed to load: %s", resident.id, error.message
        )
        await close_engine(resident)
        now_s = asyncio.get_running_loop().time()
        failure = resident.failure = failed_again(error, resident.failure, now_s)
        resident.set_status("failed", error)
        for tenant in resident.tenants:
            self._failures.note(tenant, resident.id, failure)

    async def has_given_up(self, resident: Resident) -> bool:
        """Whether the engine of a loaded model is dead for good; it then counts as a load that failed."""
        assert resident.engine is not None
        reasons = [state.error for state in resident.engine.models() if state.status == "failed"]
        if reasons:
            await self._fail(resident, EngineFailed(f"The engine is down: {reasons[0] or 'it gave up'}."))
        return bool(reasons)

    async def _build(self, resident: Resident, options: LoadOptions) -> ManagedEngine:
        """Make the engine, evicting others until it fits; raises InsufficientMemory when none can go."""
        while True:
            most = self._settings.max_models
            loaded = self._table.loaded()
            candidates = evictable(loaded, resident)
            unloaded = victim(candidates)
            if most is not None and len(loaded) >= most:
                await evict(unloaded or _no_place(most))
                continue
            room = available_bytes(loaded, self._free_bytes(), self._settings.memory_bytes)
            try:
                return await resident.candidate.build(options, free_bytes=room)
            except InsufficientMemory as error:
                if unloaded is None or cannot_fit(candidates, error):
                    raise
                await evict(unloaded)


def is_over(failure: RecentFailure) -> bool:
    """Whether a model that failed may be tried again for a request."""
    return asyncio.get_running_loop().time() >= failure.until_s


def _no_place(most: int) -> Resident:
    raise Overloaded(
        f"{most} models are loaded, which is as many as this node holds, and none of them may go.",
        hint="Unload one, or raise residency.max_models.",
    )


def _report(loop: asyncio.AbstractEventLoop, resident: Resident, done: int, total: int) -> None:
    loop.call_soon_threadsafe(resident.report, done, total)


def without_traceback(error: GanglionError) -> GanglionError:
    """An error that was raised before, without the frames of whoever it was raised for: they would add up."""
    return error.with_traceback(None)
