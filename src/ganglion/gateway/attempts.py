"""One awaited request's way through the fleet: who is asked, who after them, and who is told what of it.

What follows a failure is decided in `retry`; this carries it out.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, assert_never

from msgspec.structs import replace

from ganglion.core.errors import (
    DeadlineExceeded,
    GanglionError,
    ModelLoading,
    Overloaded,
    RequestQuarantined,
    UpstreamUnavailable,
)
from ganglion.gateway.decision import Asked, Chooser, Chosen, Cold, Refused, Translated
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.loading import Loader
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.node_queue import Waiter
from ganglion.gateway.pool import Stale, Unreached
from ganglion.gateway.quarantine import MUST_WAIT, TOOK_DOWN, Loss, Suspicion
from ganglion.gateway.retry import (
    Fault,
    Mark,
    Outcome,
    RetryDecision,
    Step,
    decide,
    is_worth_a_look,
    may_go_on,
)

Poke = Callable[[str], None]
"""Hears the name of a node that should be looked at now."""

ALONE: Final = (Suspicion.SUSPECT, Suspicion.GRAVE)


class Silent(DeadlineExceeded):
    """A node said nothing for longer than is waited."""


class Withdrawn(UpstreamUnavailable):
    """A node is not waited for any longer."""


class RunningCall:
    """A call that somebody awaits, on one node; only what happens inside `within` is waited for."""

    def __init__(self, spec: NodeSpec, losses: int) -> None:
        self.spec = spec
        self.began_after = losses
        self.last_heard_s = 0.0
        self._is_withdrawn = False
        self._timeout: asyncio.Timeout | None = None

    def withdraw(self) -> None:
        """For the fleet."""
        self._is_withdrawn = True
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def within(self, limit_s: float | None, stage: str) -> AsyncGenerator[None, None]:
        """Wait for the node here, for so long; raises Silent, Withdrawn."""
        if self._is_withdrawn:
            raise self._withdrawn()
        try:
            async with asyncio.timeout(limit_s) as self._timeout:
                yield
            self.last_heard_s = time.monotonic()
        except TimeoutError:
            if self._is_withdrawn:
                raise self._withdrawn() from None
            raise Silent(stage, limit_s or 0.0) from None
        finally:
            self._timeout = None

    def _withdrawn(self) -> Withdrawn:
        name = self.spec.name
        return Withdrawn(f"The node {name!r} no longer answers.", extras={"node": name})


def fault_of(error: GanglionError) -> Fault | None:
    """What happened to a call whose waiting ended so; None where the node is not at fault."""
    match error:
        case Unreached():
            return Fault.UNREACHED
        case Stale():
            return Fault.STALE
        case Withdrawn():
            return Fault.WITHDRAWN
        case DeadlineExceeded():
            return Fault.SILENT
        case UpstreamUnavailable():
            return Fault.LOST
        case _:
            return None


class Attempts:
    """One request's way through the fleet; `suspicion` tells how it is to be run."""

    def __init__(
        self,
        fleet: Fleet,
        chooser: Chooser,
        loader: Loader,
        asked: Asked,
        *,
        poke: Poke | None = None,
        suspicion: Callable[[], Suspicion] = lambda: Suspicion.NONE,
    ) -> None:
        self._fleet = fleet
        self._chooser = chooser
        self._loader = loader
        self._asked = asked
        self._poke = poke
        self._suspicion = suspicion
        self._tried: set[str] = set()
        self._stale: set[str] = set()
        self._spent = 0
        self._has_loaded = False
        self._last: GanglionError | None = None
        self._waiter: Waiter | None = None

    async def next(self) -> Chosen | Translated:
        """The node to ask, once one may be asked; raises why there is none, which is what the last one said
        where one was asked."""
        try:
            return await self._next()
        finally:
            self._stop_waiting()

    async def _next(self) -> Chosen | Translated:
        while True:
            match choose(self._chooser, self._current(), self._suspicion()):
                case Chosen() | Translated() as chosen:
                    return chosen
                case Cold(model=model):
                    if self._has_loaded:
                        raise self._last or ModelLoading(f"The model {model!r} was loaded and is gone again.")
                    self._has_loaded = True
                    try:
                        await self._loader.load(model)
                    except GanglionError as error:
                        self._last = error  # told unless a fallback answers
                case Refused() if self._stale:
                    self._tried -= self._stale
                    self._stale.clear()
                case Refused(error=error, waits_for=nodes):
                    if not nodes:
                        raise self._last or error
                    await self._wait_for_room(nodes)
                case never:
                    assert_never(never)

    async def _wait_for_room(self, nodes: frozenset[str]) -> None:
        """Wait until one of these may take it; raises what the last node said where none does in time."""
        queue = self._fleet.queue
        if self._waiter is None:
            self._waiter = queue.waiter(self._asked.tenant)
        try:
            await queue.room(self._waiter, nodes)
        except Overloaded as error:
            raise self._last or error from None

    def _stop_waiting(self) -> None:
        if self._waiter is not None:
            self._fleet.queue.leave(self._waiter)
            self._waiter = None

    @contextmanager
    def running(self, spec: NodeSpec) -> Generator[RunningCall, None, None]:
        """Count a request on its node for as long as it runs there, alone where that is asked for."""
        call, fleet = RunningCall(spec, self._fleet.losses), self._fleet
        is_reserved = self._suspicion() in ALONE and is_spare(fleet, self._chooser, self._current(), spec)
        if is_reserved:
            fleet.reserve(spec.name)
        fleet.begin(spec.name, call)
        try:
            yield call
        finally:
            fleet.end(spec.name, call)
            if is_reserved:
                fleet.free(spec.name)

    def answered(self, spec: NodeSpec) -> None:
        """The node does what it should."""
        self._fleet.succeeded(spec.name)

    def failed(
        self, call: RunningCall, outcome: Outcome, *, is_given_out: bool = False
    ) -> tuple[RetryDecision, Loss | None]:
        """Note a failure: what follows from it, and what was lost, where the request may be at fault."""
        spec, fleet = call.spec, self._fleet
        decision = decide(outcome, kind=spec.kind, is_given_out=is_given_out)
        if decision.mark is Mark.SUCCESS:
            fleet.succeeded(spec.name)
        elif decision.mark is Mark.FAILURE:
            fleet.failed(spec.name)
        if self._poke is not None and is_worth_a_look(outcome, decision):
            self._poke(spec.name)
        return decision, fleet.lose(spec.name, call.began_after) if decision.is_crash else None

    def goes_on(self, spec: NodeSpec, decision: RetryDecision, error: GanglionError) -> GanglionError | None:
        """None where somebody else is to be asked; else what the client is told."""
        told = _told(spec, error)
        self._spent += decision.step is Step.ONCE_MORE
        if not may_go_on(decision, self._spent):
            return told
        self._tried.add(spec.name)
        if decision.may_be_same:
            self._stale.add(spec.name)
        self._last = told
        return None

    def _current(self) -> Asked:
        return replace(self._asked, tried=frozenset(self._tried))


def choose(chooser: Chooser, asked: Asked, suspicion: Suspicion) -> Chosen | Translated | Cold | Refused:
    """Where a request goes; a suspect to a node on which nothing else runs."""
    if suspicion is Suspicion.REFUSED:
        return Refused(RequestQuarantined(TOOK_DOWN))
    if suspicion not in ALONE:
        return chooser.choose(asked)
    alone = chooser.choose(replace(asked, is_alone=True))
    if isinstance(alone, Chosen | Translated):
        return alone
    decision = chooser.choose(asked)
    if suspicion is Suspicion.GRAVE and isinstance(decision, Chosen | Translated):
        return Refused(Overloaded(MUST_WAIT))
    return decision


def is_spare(fleet: Fleet, chooser: Chooser, asked: Asked, spec: NodeSpec) -> bool:
    """Whether one request may have a node to itself: nothing runs there, and others have one to go to."""
    if fleet.in_flight.get(spec.name, 0):
        return False
    others = chooser.choose(Asked(asked.model, asked.wire, tried=asked.tried | {spec.name}))
    return isinstance(others, Chosen | Translated)


def _told(spec: NodeSpec, error: GanglionError) -> GanglionError:
    """The error as a client hears it, with the node that it is about."""
    if isinstance(error, Unreached | Stale | Withdrawn):
        return UpstreamUnavailable(error.message, extras={"node": spec.name})
    if isinstance(error, UpstreamUnavailable):
        error.extras.setdefault("node", spec.name)
    return error
