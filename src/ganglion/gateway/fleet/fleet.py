"""The fleet as the gateway sees it now: what each node last reported, and the requests that run on each.

Law: `nodes` is replaced as a whole and never changed in place, so whoever holds it holds one moment.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Protocol

from ganglion.core.engine import Status
from ganglion.core.errors import InvalidValue
from ganglion.core.sampling import Sampling
from ganglion.gateway.fleet.node_queue import NodeQueue
from ganglion.gateway.fleet.quarantine import LostRequest
from ganglion.gateway.node import NodeSpec, NodeView, Replica

ALIVE_S: Final = 2.0
"""An answer that sent something within so many seconds is alive, whatever probes say: some servers list
models slowly."""

_OnFleetChange = Callable[[], None]


class _RunningOnNode(Protocol):
    """A request of this gateway that runs on a node."""

    @property
    def last_heard_s(self) -> float:
        """When anything of its answer last came, on the monotonic clock; 0 where nothing did."""

    def withdraw(self) -> None:
        """Stop waiting for the node."""


_MAX_FAILED_LOADS = 1024


@dataclass(frozen=True, slots=True)
class _FailedLoad:
    """A model that no node could load, and the nodes that there were then."""

    model: str
    code: str
    why: str
    nodes: frozenset[str]
    until_s: float
    """On the monotonic clock of this machine: until then it is not tried again."""


class Fleet:
    """Every node by its name; health checks write, everything else reads."""

    def __init__(
        self,
        specs: tuple[NodeSpec, ...] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        queue: NodeQueue | None = None,
    ) -> None:
        self._clock = clock
        self.queue = NodeQueue() if queue is None else queue
        """Requests that wait for a node at its `max_in_flight`."""
        self.queue.on_free = self._freed
        self._listeners: list[_OnFleetChange] = []
        self.nodes: dict[str, NodeView] = {spec.name: NodeView(spec) for spec in specs}
        self.in_flight: defaultdict[str, int] = defaultdict(int)
        """Requests of this gateway that run on each node, also on one that has left meanwhile."""
        self._running: defaultdict[str, set[_RunningOnNode]] = defaultdict(set)
        self.reserved: frozenset[str] = frozenset()
        """Nodes on which a request runs alone: nothing else is sent there meanwhile."""
        self.losses = 0
        """How often a request was lost with its node: what ran before a loss is told from what came after."""
        self._last_loss: dict[str, int] = {}
        """The number of each node's last loss: what ran there then was lost with others."""
        self._drained: frozenset[str] = frozenset()
        self._draining_replicas: frozenset[tuple[str, str]] = frozenset()
        self.learned: dict[tuple[str, str], str] = {}
        """What nodes call the models that they were asked to load: the catalogue's id, by node and its id."""
        self.loading: set[str] = set()
        """Models that are loading on behalf of this gateway; requests for one may wait for it."""
        self.failed_loads: tuple[_FailedLoad, ...] = ()
        """Models that no node could load when that was last tried."""
        self._refused: dict[str, int] = {}
        self._cool_until_s: dict[str, float] = {}
        self._room: object = None

    def listen(self, listener: _OnFleetChange) -> Callable[[], None]:
        """Call the listener on the event loop after each change; calling the result ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def put(self, view: NodeView) -> None:
        """Replace what is known of a node; a later report that says the same is no change."""
        if view.name in self._drained and not view.is_draining:
            view = replace(view, is_draining=True)
        if self._draining_replicas:
            view = replace(view, replicas=tuple(self._seen(view.name, replica) for replica in view.replicas))
        known = self.nodes.get(view.name)
        if known == view:
            return
        self.nodes = {**self.nodes, view.name: view}
        if known is None or replace(known, last_heard_s=view.last_heard_s) != view:
            self._notify()
        if view.is_silent:
            self._withdraw(view.name, self._clock() - ALIVE_S)

    def node_named(self, name: str) -> NodeView:
        """The node of that name; raises InvalidValue."""
        view = self.nodes.get(name)
        if view is None:
            names = ", ".join(sorted(self.nodes)) or "none"
            raise InvalidValue(
                f"There is no node {name!r} in this fleet.", param="node", hint=f"There are: {names}."
            )
        return view

    def add(self, spec: NodeSpec) -> None:
        """Add a node that was declared or joined; one of that name keeps what is known of it."""
        known = self.nodes.get(spec.name)
        self.put(NodeView(spec) if known is None else replace(known, spec=spec))

    def declare(self, specs: tuple[NodeSpec, ...]) -> None:
        """Let these be all nodes that have no lease; of one that moved, everything is forgotten."""
        declared = {spec.name: spec for spec in specs}
        for name, view in self.nodes.items():
            spec = declared.get(name)
            is_kept = spec is not None and spec.is_same_server(view.spec)
            if view.spec.epoch is None and not is_kept:
                self.remove(name)
        for spec in specs:
            self.add(spec)

    def remove(self, name: str) -> None:
        """Remove a node that left; what still runs on it goes on."""
        if name in self.nodes:
            self.nodes = {other: view for other, view in self.nodes.items() if other != name}
            self._forget(name)
            self.learned = {key: model for key, model in self.learned.items() if key[0] != name}
            self._notify()

    def expire(self, name: str) -> None:
        """Remove a node whose lease was not renewed; what still runs on it is given up."""
        self.remove(name)
        self._withdraw(name)

    def count_in(self, name: str, running: _RunningOnNode) -> None:
        """Count a request on its node, until `count_out`."""
        self.in_flight[name] += 1
        self._running[name].add(running)

    def count_out(self, name: str, running: _RunningOnNode) -> None:
        """Count a request on its node no longer."""
        self._running[name].discard(running)
        if self.queue.count and self._may_take_one(name) and self.queue.hand_over(name):
            return  # its slot goes to a request that waits, and stays counted until it is taken
        self._discount(name)

    def record_loss(self, name: str, began_after: int) -> LostRequest:
        """Record that a request, begun after so many losses, is lost with its node; before `count_out`."""
        is_first = began_after >= self._last_loss.get(name, 0)
        is_alone = is_first and self.in_flight.get(name, 0) <= 1
        self.losses += 1
        self._last_loss[name] = self.losses
        return LostRequest(name, self.losses, began_after=began_after, is_alone=is_alone)

    def reserve(self, name: str) -> None:
        """Send nothing else to a node, until `free`."""
        self.reserved |= {name}

    def free(self, name: str) -> None:
        """Let other requests go to a node again."""
        self.reserved -= {name}
        if len(self.queue):
            self._offer(name)

    def _withdraw(self, name: str, since_s: float = inf) -> None:
        """Give up what runs on a node, except what has sent something since."""
        for running in tuple(self._running.get(name, ())):
            if running.last_heard_s < since_s:
                running.withdraw()

    def learn(self, node: str, replica: str, model: str) -> None:
        """Note what a node calls a model of the catalogue."""
        if self.learned.get((node, replica)) != model:
            self.learned = {**self.learned, (node, replica): model}
            self._notify()

    def failed_to_load(self, model: str, code: str, why: str, *, for_s: float) -> None:
        """Note that no node could load a model; it is not tried again for so long."""
        others = (failed for failed in self.failed_loads if failed.model != model)
        failed = _FailedLoad(model, code, why, self._working(), self._clock() + for_s)
        self.failed_loads = (*others, failed)[-_MAX_FAILED_LOADS:]
        self._notify()

    def loaded(self, model: str) -> None:
        """Note that a model was loaded after all."""
        if any(failed.model == model for failed in self.failed_loads):
            self.failed_loads = tuple(failed for failed in self.failed_loads if failed.model != model)
            self._notify()

    def is_unloadable(self, model: str) -> bool:
        """Whether no node could load a model a moment ago, and none has come since: it is not tried now."""
        if not self.failed_loads:
            return False
        failed = self.unloadable(model)
        return failed is not None and self._clock() < failed.until_s

    def unloadable(self, model: str) -> _FailedLoad | None:
        """Why no node can load a model, as long as each was tried; None where one may."""
        for failed in self.failed_loads:
            if failed.model == model and self._working() <= failed.nodes:
                return failed
        return None

    def _working(self) -> frozenset[str]:
        return frozenset(view.name for view in self.nodes.values() if view.takes_work)

    def sampling_of(self, spec: NodeSpec, model: str) -> Sampling:
        """The sampling defaults of a model on a node, by the id that the node gives it."""
        return (self.nodes.get(spec.name) or NodeView(spec)).sampling_of(model)

    def set_draining(self, name: str, *, is_draining: bool) -> None:
        """Send a node no new requests, whatever it reports itself, or send them again."""
        names = self._drained | {name} if is_draining else self._drained - {name}
        self._drained = frozenset(names)
        view = self.nodes.get(name)
        if view is not None:
            self.put(replace(view, is_draining=is_draining))

    @contextmanager
    def draining_replicas(self, name: str, replicas: tuple[str, ...]) -> Iterator[None]:
        """While inside, no request is sent to these models of a node: they may be unloaded."""
        marked = frozenset((name, replica) for replica in replicas)
        self._draining_replicas |= marked
        view = self.nodes.get(name)
        if view is not None:
            self.put(view)
        try:
            yield
        finally:
            self._draining_replicas -= marked
            view = self.nodes.get(name)
            if view is not None:
                self.put(_with_status(view, replicas, "draining", "loaded"))  # if not unloaded

    def mark_unloaded(self, name: str, replica: str) -> None:
        """Note that a node unloaded a model; it reports so itself a moment later."""
        view = self.nodes.get(name)
        if view is not None:
            self.put(_with_status(view, (replica,), "draining", "unloaded"))

    def _seen(self, name: str, replica: Replica) -> Replica:
        is_leaving = replica.is_servable and (name, replica.id) in self._draining_replicas
        return replace(replica, status="draining") if is_leaving else replica

    def failed(self, name: str) -> None:
        """Count a failure of a node: after some of these in a row it cools down for a while."""
        view = self.nodes.get(name)
        if view is None:
            return
        self._refused[name] = self._refused.get(name, 0) + 1
        if self._refused[name] >= view.spec.cool_down_after:
            self._cool_until_s[name] = self._clock() + view.spec.cool_down_s

    def succeeded(self, name: str) -> None:
        """Note that a node answered: its failures in a row are over."""
        if self._refused:
            self._refused.pop(name, None)
            self._cool_until_s.pop(name, None)

    def is_cooling(self, name: str) -> bool:
        """Whether a node is cooling down after failures."""
        until_s = self._cool_until_s.get(name)
        return until_s is not None and self._clock() < until_s

    def servable_models(self) -> frozenset[str]:
        """The ids of the models that can be served now."""
        working = (view for view in self.nodes.values() if view.takes_work)
        return frozenset(each.id for view in working for each in view.replicas if each.is_servable)

    def has_room(self, view: NodeView) -> bool:
        """Whether the gateway may send one more request to a node."""
        cap = view.spec.max_in_flight
        return cap is None or self.in_flight.get(view.name, 0) < cap

    async def wait_for_room(self, view: NodeView, tenant: str) -> None:
        """Return when a node may get one more request; raises Overloaded."""
        waiter = self.queue.waiter(tenant)
        while not self.has_room(view):
            await self.queue.room(waiter, frozenset((view.name,)))
        self.queue.leave(waiter)

    def _freed(self, name: str) -> None:
        """A slot that was handed over is about to be taken, or not: then it goes to the next one."""
        self._discount(name)
        asyncio.get_running_loop().call_soon(self._offer, name)

    def _offer(self, name: str) -> None:
        view = self.nodes.get(name)
        if view is None or not view.takes_work or name in self.reserved:
            return
        while self.has_room(view) and self.queue.hand_over(name):
            self.in_flight[name] += 1

    def _may_take_one(self, name: str) -> bool:
        """Whether a slot that is free there may be given to another request."""
        view = self.nodes.get(name)
        if view is None or not view.takes_work or name in self.reserved:
            return False
        cap = view.spec.max_in_flight
        return cap is None or self.in_flight.get(name, 0) <= cap

    def _discount(self, name: str) -> None:
        left = self.in_flight[name] = self.in_flight[name] - 1
        if left <= 0 and name not in self.nodes:
            self._forget(name)  # it has left, and names of nodes are theirs to choose

    def _forget(self, name: str) -> None:
        self._refused.pop(name, None)
        self._cool_until_s.pop(name, None)
        self._last_loss.pop(name, None)
        if not self.in_flight.get(name):
            self.in_flight.pop(name, None)
            self._running.pop(name, None)

    def _notify(self) -> None:
        if len(self.queue):
            room = frozenset(map(_room_of, self.nodes.values()))
            if room != self._room:
                self._room = room
                self.queue.look_again()
        for listener in tuple(self._listeners):
            listener()


def _room_of(view: NodeView) -> tuple[str, bool, int | None, frozenset[str]]:
    """What decides whether a waiting request may go to a node."""
    servable = frozenset(replica.id for replica in view.replicas if replica.is_servable)
    return view.name, view.takes_work, view.spec.max_in_flight, servable


def _with_status(view: NodeView, replicas: tuple[str, ...], before: Status, status: Status) -> NodeView:
    return replace(
        view,
        replicas=tuple(
            replace(replica, status=status)
            if replica.id in replicas and replica.status == before
            else replica
            for replica in view.replicas
        ),
    )
