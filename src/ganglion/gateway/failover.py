"""Sends one request from node to node until one answers: choosing, loading, waiting, and trying again.

What follows a failure is decided in `routing.retry`; this carries it out.
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
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.node_queue import QueuedRequest
from ganglion.gateway.fleet.quarantine import MUST_WAIT_MESSAGE, QUARANTINED_MESSAGE, LostRequest, Suspicion
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.routing.decision import (
    Chooser,
    ChosenNode,
    ColdModel,
    ModelLoader,
    NoRoute,
    RoutingRequest,
    TranslatedNode,
)
from ganglion.gateway.routing.retry import (
    UNTRIED,
    HealthMark,
    NodeFault,
    NodeOutcome,
    RetryDecision,
    decide_retry,
    needs_probe,
)
from ganglion.gateway.upstream.pool import NodeUnreached, StaleConnection

ProbeNow = Callable[[str], None]
"""Probes the node of this name at once."""

RUNS_ALONE: Final = (Suspicion.SUSPECT, Suspicion.GRAVE)


class _NodeSilent(DeadlineExceeded):
    """A node sent nothing for too long."""


class _NodeWithdrawn(UpstreamUnavailable):
    """A node was given up while it was waited for."""


class RunningCall:
    """A call on one node; the fleet can end what happens inside `within`."""

    def __init__(self, spec: NodeSpec, losses: int) -> None:
        self.spec = spec
        self.began_after = losses
        self.last_heard_s = 0.0
        self._is_withdrawn = False
        self._timeout: asyncio.Timeout | None = None

    def withdraw(self) -> None:
        """Stop waiting for the node; called by the fleet."""
        self._is_withdrawn = True
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def within(self, limit_s: float | None, stage: str) -> AsyncGenerator[None, None]:
        """Wait for the node here, for so long; raises NodeSilent, NodeWithdrawn."""
        if self._is_withdrawn:
            raise self._withdrawn()
        try:
            async with asyncio.timeout(limit_s) as self._timeout:
                yield
            self.last_heard_s = time.monotonic()
        except TimeoutError:
            if self._is_withdrawn:
                raise self._withdrawn() from None
            raise _NodeSilent(stage, limit_s or 0.0) from None
        finally:
            self._timeout = None

    def _withdrawn(self) -> _NodeWithdrawn:
        name = self.spec.name
        return _NodeWithdrawn(f"The node {name!r} no longer answers.", extras={"node": name})


def fault_of(error: GanglionError) -> NodeFault | None:
    """The fault behind an error of a call; None where the node is not at fault."""
    match error:
        case NodeUnreached():
            return NodeFault.UNREACHED
        case StaleConnection():
            return NodeFault.STALE
        case _NodeWithdrawn():
            return NodeFault.WITHDRAWN
        case DeadlineExceeded():
            return NodeFault.SILENT
        case UpstreamUnavailable():
            return NodeFault.LOST
        case _:
            return None


class Failover:
    """One request's way through the fleet; `suspicion` says whether it must run alone."""

    def __init__(
        self,
        fleet: Fleet,
        chooser: Chooser,
        loader: ModelLoader,
        request: RoutingRequest,
        *,
        probe_now: ProbeNow = lambda name: None,
        suspicion: Callable[[], Suspicion] = lambda: Suspicion.NONE,
    ) -> None:
        self._fleet = fleet
        self._chooser = chooser
        self._loader = loader
        self._request = request
        self._probe_now = probe_now
        self._suspicion = suspicion
        self._state = UNTRIED
        self._last_error: GanglionError | None = None
        self._queued: QueuedRequest | None = None

    async def next(self) -> ChosenNode | TranslatedNode:
        """The node to send it to, once there is one; raises why there is none, which is the last node's error
        where one was tried."""
        try:
            return await self._next()
        finally:
            self._stop_waiting()

    async def _next(self) -> ChosenNode | TranslatedNode:
        while True:
            match choose_node(self._chooser, self._current(), self._suspicion()):
                case ChosenNode() | TranslatedNode() as chosen:
                    return chosen
                case ColdModel(model=model):
                    if not self._state.may_load:
                        raise self._last_error or ModelLoading(
                            f"The model {model!r} was loaded and is gone again."
                        )
                    try:
                        await self._loader.load(model)
                    except GanglionError as error:
                        self._last_error = error  # raised unless a fallback answers
                    self._state = self._state.after_load()
                case NoRoute() if self._state.stale:
                    self._state = self._state.readmitting_stale()
                case NoRoute(error=error, waits_for=nodes):
                    if not nodes:
                        raise self._last_error or error
                    await self._wait_for_room(nodes)
                case never:
                    assert_never(never)

    async def _wait_for_room(self, nodes: frozenset[str]) -> None:
        """Wait until one of these may take it; raises the last node's error where none does in time."""
        queue = self._fleet.queue
        if self._queued is None:
            self._queued = queue.waiter(self._request.tenant)
        try:
            await queue.room(self._queued, nodes)
        except Overloaded as error:
            raise self._last_error or error from None

    def _stop_waiting(self) -> None:
        if self._queued is not None:
            self._fleet.queue.leave(self._queued)
            self._queued = None

    @contextmanager
    def running(self, spec: NodeSpec) -> Generator[RunningCall, None, None]:
        """Count a request on its node for as long as it runs there, alone where it is suspected."""
        call, fleet = RunningCall(spec, self._fleet.losses), self._fleet
        is_reserved = self._suspicion() in RUNS_ALONE and may_run_alone(
            fleet, self._chooser, self._current(), spec
        )
        if is_reserved:
            fleet.reserve(spec.name)
        fleet.count_in(spec.name, call)
        try:
            yield call
        finally:
            fleet.count_out(spec.name, call)
            if is_reserved:
                fleet.free(spec.name)

    def answered(self, spec: NodeSpec) -> None:
        """Note that the node answered."""
        self._fleet.succeeded(spec.name)

    def failed(
        self, call: RunningCall, outcome: NodeOutcome, *, is_given_out: bool = False
    ) -> tuple[RetryDecision, LostRequest | None]:
        """Note a failure: the decision on it, and what was lost, where the request may be at fault."""
        spec, fleet = call.spec, self._fleet
        decision = decide_retry(outcome, kind=spec.kind, is_given_out=is_given_out)
        mark_node(fleet, spec.name, outcome, decision, self._probe_now)
        return decision, fleet.record_loss(spec.name, call.began_after) if decision.is_crash else None

    def goes_on(self, spec: NodeSpec, decision: RetryDecision, error: GanglionError) -> GanglionError | None:
        """None where another node is to be tried; else the error for the client."""
        client_error = _client_error(spec, error)
        self._state = self._state.after(spec.name, decision)
        if not self._state.may_retry(decision):
            return client_error
        self._last_error = client_error
        return None

    def _current(self) -> RoutingRequest:
        return replace(self._request, tried=self._state.tried)


def mark_node(
    fleet: Fleet, name: str, outcome: NodeOutcome, decision: RetryDecision, probe_now: ProbeNow
) -> None:
    """Note what an outcome says about its node, and have the node probed where that is worth it."""
    if decision.mark is HealthMark.SUCCESS:
        fleet.succeeded(name)
    elif decision.mark is HealthMark.FAILURE:
        fleet.failed(name)
    if needs_probe(outcome, decision):
        probe_now(name)


def choose_node(
    chooser: Chooser, request: RoutingRequest, suspicion: Suspicion
) -> ChosenNode | TranslatedNode | ColdModel | NoRoute:
    """Decide where a request goes: a suspected one to a node on which nothing else runs."""
    if suspicion is Suspicion.REFUSED:
        return NoRoute(RequestQuarantined(QUARANTINED_MESSAGE))
    if suspicion not in RUNS_ALONE:
        return chooser.choose(request)
    alone = chooser.choose(replace(request, is_alone=True))
    if isinstance(alone, ChosenNode | TranslatedNode):
        return alone
    decision = chooser.choose(request)
    if suspicion is Suspicion.GRAVE and isinstance(decision, ChosenNode | TranslatedNode):
        return NoRoute(Overloaded(MUST_WAIT_MESSAGE))
    return decision


def may_run_alone(fleet: Fleet, chooser: Chooser, request: RoutingRequest, spec: NodeSpec) -> bool:
    """Whether one request may have a node to itself: nothing runs there, and other requests have another."""
    if fleet.in_flight.get(spec.name, 0):
        return False
    others = chooser.choose(RoutingRequest(request.model, request.wire, tried=request.tried | {spec.name}))
    return isinstance(others, ChosenNode | TranslatedNode)


def _client_error(spec: NodeSpec, error: GanglionError) -> GanglionError:
    """The error for the client, with the node that it is about."""
    if isinstance(error, NodeUnreached | StaleConnection | _NodeWithdrawn):
        return UpstreamUnavailable(error.message, extras={"node": spec.name})
    if isinstance(error, UpstreamUnavailable):
        error.extras.setdefault("node", spec.name)
    return error
