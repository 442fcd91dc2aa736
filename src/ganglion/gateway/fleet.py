"""The fleet as the gateway sees it now: every node's last word, and how much of ours runs on each.

Law: `nodes` is replaced as a whole and never changed in place, so whoever holds it holds one moment.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ganglion.core.engine import Status
from ganglion.gateway.node import NodeSpec, NodeView, Replica

Listener = Callable[[], None]


class Fleet:
    """Every node by its name; the poller writes, everybody else reads."""

    def __init__(
        self, specs: tuple[NodeSpec, ...] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._listeners: list[Listener] = []
        self.nodes: dict[str, NodeView] = {spec.name: NodeView(spec) for spec in specs}
        self.in_flight: defaultdict[str, int] = defaultdict(int)
        """Requests of this gateway that run on each node, also on one that has left meanwhile."""
        self._resting: frozenset[str] = frozenset()
        self._leaving: frozenset[tuple[str, str]] = frozenset()
        self.learned: dict[tuple[str, str], str] = {}
        """What nodes call the models that they were asked to load: the catalogue's id, by node and its id."""
        self.loading: set[str] = set()
        """Models that this gateway has nodes load just now; whoever asks for one may wait for it too."""
        self._refused: dict[str, int] = {}
        self._cool_until_s: dict[str, float] = {}

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Be called on the event loop after each change; what comes back ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def put(self, view: NodeView) -> None:
        """A node's last word, in place of the one before; the same word said later is no change."""
        if view.name in self._resting and not view.is_draining:
            view = replace(view, is_draining=True)
        if self._leaving:
            view = replace(view, replicas=tuple(self._seen(view.name, replica) for replica in view.replicas))
        known = self.nodes.get(view.name)
        if known == view:
            return
        self.nodes = {**self.nodes, view.name: view}
        if known is None or replace(known, heard_s=view.heard_s) != view:
            self._tell()

    def add(self, spec: NodeSpec) -> None:
        """A node that was declared or joined; one of that name keeps what is known of it."""
        known = self.nodes.get(spec.name)
        self.put(NodeView(spec) if known is None else replace(known, spec=spec))

    def declare(self, specs: tuple[NodeSpec, ...]) -> None:
        """Of the nodes that have no lease these are all; one that moved is known no longer."""
        declared = {spec.name: spec for spec in specs}
        for name, view in self.nodes.items():
            spec = declared.get(name)
            is_moved = spec is not None and (spec.url, spec.kind) != (view.spec.url, view.spec.kind)
            if view.spec.epoch is None and (spec is None or is_moved):
                self.remove(name)
        for spec in specs:
            self.add(spec)

    def remove(self, name: str) -> None:
        """A node that left; what still runs on it goes on."""
        if name in self.nodes:
            self.nodes = {other: view for other, view in self.nodes.items() if other != name}
            self._forget(name)
            self.learned = {key: model for key, model in self.learned.items() if key[0] != name}
            self._tell()

    def learn(self, node: str, replica: str, model: str) -> None:
        """A node calls a model of the catalogue so."""
        if self.learned.get((node, replica)) != model:
            self.learned = {**self.learned, (node, replica): model}
            self._tell()

    @property
    def resting(self) -> frozenset[str]:
        """Nodes that take no new work whatever they say themselves."""
        return self._resting

    def follow(
        self,
        nodes: dict[str, NodeView],
        *,
        resting: frozenset[str],
        learned: dict[tuple[str, str], str],
        loading: frozenset[str],
    ) -> None:
        """Be as another process's fleet, which keeps the watch; what runs here stays this one's own."""
        gone = self.nodes.keys() - nodes.keys()
        self.nodes, self._resting, self.learned = nodes, resting, learned
        self.loading.clear()
        self.loading.update(loading)
        for name in gone:
            self._forget(name)
        self._tell()

    def rest(self, name: str, *, is_resting: bool) -> None:
        """Let a node take no new work, whatever it says itself, or let it again."""
        names = self._resting | {name} if is_resting else self._resting - {name}
        self._resting = frozenset(names)
        view = self.nodes.get(name)
        if view is not None:
            self.put(replace(view, is_draining=is_resting))

    @contextmanager
    def leaving(self, name: str, replicas: tuple[str, ...]) -> Iterator[None]:
        """While inside, no request is sent to these models of a node: they may be let go."""
        marked = frozenset((name, replica) for replica in replicas)
        self._leaving |= marked
        self._tell_again(name)
        try:
            yield
        finally:
            self._leaving -= marked
            view = self.nodes.get(name)
            if view is not None:
                self.put(_with_status(view, replicas, "draining", "loaded"))  # whoever stayed after all

    def let_go(self, name: str, replica: str) -> None:
        """A node has let a model go; it says so itself a moment later."""
        view = self.nodes.get(name)
        if view is not None:
            self.put(_with_status(view, (replica,), "draining", "unloaded"))

    def _tell_again(self, name: str) -> None:
        view = self.nodes.get(name)
        if view is not None:
            self.put(view)

    def _seen(self, name: str, replica: Replica) -> Replica:
        is_leaving = replica.is_servable and (name, replica.id) in self._leaving
        return replace(replica, status="draining") if is_leaving else replica

    def failed(self, name: str) -> None:
        """A request could not be put to a node: after some of these in a row it is left alone for a while."""
        view = self.nodes.get(name)
        if view is None:
            return
        self._refused[name] = self._refused.get(name, 0) + 1
        if self._refused[name] >= view.spec.cool_down_after:
            self._cool_until_s[name] = self._clock() + view.spec.cool_down_s

    def succeeded(self, name: str) -> None:
        """A node answered."""
        if self._refused:
            self._refused.pop(name, None)
            self._cool_until_s.pop(name, None)

    def is_cooling(self, name: str) -> bool:
        """Whether a node is being left alone."""
        until_s = self._cool_until_s.get(name)
        return until_s is not None and self._clock() < until_s

    def has_room(self, view: NodeView) -> bool:
        """Whether the gateway may put one more request to a node."""
        cap = view.spec.max_in_flight
        return cap is None or self.in_flight.get(view.name, 0) < cap

    def _forget(self, name: str) -> None:
        self._refused.pop(name, None)
        self._cool_until_s.pop(name, None)
        if not self.in_flight.get(name):
            self.in_flight.pop(name, None)

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()


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
