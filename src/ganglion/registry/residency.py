"""Several resident models as one engine, dispatched by name.

Law: a model that fails to open stays listed with its error, and never keeps another one from serving.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from ganglion.core.engine import ManagedEngine, ModelState, Status
from ganglion.core.errors import (
    EngineFailed,
    GanglionError,
    InvalidValue,
    ModelLoading,
    ModelNotFound,
    ShuttingDown,
)
from ganglion.core.events import Event, Failed, Progress
from ganglion.core.request import Request
from ganglion.registry.resolver import what_is_here

logger = logging.getLogger("ganglion.registry")

WAITING_LIMIT: Final = 256
"""Requests that may wait for one model to load: as many as an engine's own queue holds."""
CATCH_ALL: Final = "*"


class Resident:
    """One model and how far its opening has come."""

    def __init__(self, engine: ManagedEngine) -> None:
        self.engine = engine
        self.status: Status = "unloaded"
        self.error: GanglionError | None = None
        self.settled = asyncio.Event()
        self.waiting = 0

    async def open(self) -> None:
        """Open the engine and remember how it went."""
        names = ", ".join(state.id for state in self.engine.models())
        began_s = time.monotonic()
        self.status = "loading"
        try:
            await self.engine.open()
        except GanglionError as error:
            self.fail(error)
            logger.error("%s failed to load: %s", names, error.message)
        except Exception as error:
            # The outermost door of a load: whatever the reason, this model failed and the others go on.
            self.fail(EngineFailed(f"The model could not be opened: {error}"))
            logger.exception("%s failed to load", names)
        else:
            self.status = "loaded"
            self.settled.set()
            logger.info("%s loaded in %.1f s", names, time.monotonic() - began_s)

    def fail(self, error: GanglionError) -> None:
        """Let everyone who waits know that this model will not come."""
        self.status, self.error = "failed", error
        self.settled.set()

    def states(self) -> tuple[ModelState, ...]:
        """The engine's own view, overruled until it is open."""
        states = self.engine.models()
        if self.status == "loaded":
            return states
        error = None if self.error is None else self.error.message
        waiting = self.waiting
        return tuple(replace(state, status=self.status, error=error, queued=waiting) for state in states)


class Residents:
    """A ManagedEngine over several, by exact id, then alias in any case, then the alias `*`."""

    def __init__(self, engines: Sequence[ManagedEngine]) -> None:
        self._residents = tuple(Resident(engine) for engine in engines)
        self._by_id: dict[str, Resident] = {}
        for resident in self._residents:
            for state in resident.engine.models():
                if state.id in self._by_id:
                    raise InvalidValue(
                        f"Two models would be served as {state.id!r}.",
                        param="model",
                        hint="Give one of them another name with --served-name.",
                    )
                self._by_id[state.id] = resident

    async def open(self) -> None:
        """Open one after another, in order; raises the first error when none could be opened."""
        for resident in self._residents:
            if resident.error is None:
                await resident.open()
        errors = [resident.error for resident in self._residents if resident.error is not None]
        if errors and len(errors) == len(self._residents):
            raise errors[0]

    async def close(self) -> None:
        """Close all; an engine that cannot be closed does not keep the others open."""
        for resident in self._residents:
            if not resident.settled.is_set():
                resident.fail(ShuttingDown("The server is shutting down."))
        closings = (resident.engine.close() for resident in self._residents)
        for outcome in await asyncio.gather(*closings, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def models(self) -> tuple[ModelState, ...]:
        """Every resident model, in the order they were named."""
        return tuple(state for resident in self._residents for state in resident.states())

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer with the model that is meant, waiting for it while it loads."""
        model_id = self._id_of(request.model)
        if model_id is None:
            names = [state.id for state in self.models()]
            yield Failed(ModelNotFound(request.model, hint=what_is_here(request.model, names)))
            return
        resident = self._by_id[model_id]
        if not resident.settled.is_set():
            if resident.waiting >= WAITING_LIMIT:
                yield Failed(ModelLoading(f"The model {model_id!r} is still loading.", param="model"))
                return
            yield Progress("queued", 0, resident.waiting + 1)
            await self._wait(resident)
        if resident.error is not None:
            yield Failed(resident.error)
            return
        async with aclosing(resident.engine.generate(replace(request, model=model_id))) as events:
            async for event in events:
                yield event

    async def _wait(self, resident: Resident) -> None:
        resident.waiting += 1
        try:
            await resident.settled.wait()
        finally:
            resident.waiting -= 1

    def _id_of(self, name: str) -> str | None:
        if name in self._by_id:
            return name
        wanted = name.casefold()
        states = [state for resident in self._residents for state in resident.engine.models()]
        for alias in (wanted, CATCH_ALL):
            for state in states:
                if alias in map(str.casefold, state.aliases):
                    return state.id
        return None
