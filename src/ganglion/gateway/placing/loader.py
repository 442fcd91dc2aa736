"""Has models loaded where there is room for them, and let go where they are not needed.

Law: one load for each model however many ask; how it ended is told to all who waited. A load goes on when
whoever asked for it leaves.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ganglion.core.errors import (
    EngineUnavailable,
    GanglionError,
    InvalidValue,
    ModelLoading,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    ShuttingDown,
)
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeSpec, NodeView, Replica
from ganglion.gateway.placing import node_calls
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.held_models import model_of, replica_of
from ganglion.gateway.placing.placement import Infeasible, Placement, placement_error
from ganglion.gateway.placing.reservations import LOOK_AGAIN_S, PATIENCE_S, FleetChanges, Reservations
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.registry.naming.names import fold

logger = logging.getLogger("ganglion.gateway")

HOLD_OFF_S: Final = 5.0
"""How long a failed load is not tried again; whoever asks until then gets the same error at once."""
SEEN_S: Final = 15.0
"""From when a node says that a load is over until the fleet must have heard of it."""
MAX_LOADS: Final = 256
"""Models on their way at once; further ones are told to come back."""

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class _Failure:
    error: GanglionError
    until_s: float


class FleetLoader:
    """Loads models on the nodes of a fleet; `probe_now` asks a node at once how it is."""

    def __init__(
        self,
        fleet: Fleet,
        catalogue: FleetCatalogue,
        node_client: NodeClient,
        *,
        probe_now: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
        hold_off_s: float = HOLD_OFF_S,
    ) -> None:
        self.catalogue = catalogue
        """May be replaced by another one at any time."""
        self._fleet = fleet
        self._node_client = node_client
        self._probe_now = probe_now
        self._clock = clock
        self._hold_off_s = hold_off_s
        self._news = FleetChanges(fleet)
        self._places = Reservations(
            fleet,
            node_client,
            probe_now=probe_now,
            news=self._news,
            clock=clock,
            patience_s=patience_s,
        )
        self._loads: dict[tuple[str, str | None], asyncio.Task[None]] = {}
        self._failures: dict[str, _Failure] = {}
        self._is_closing = False

    async def load(self, model: str) -> None:
        """Return once some node holds the model; raises why it cannot be."""
        wanted = self._wanted(model)
        # A load that was asked for on a certain node may be all that is needed.
        for task in [task for (name, node), task in self._loads.items() if name == wanted.id and node]:
            await asyncio.wait((task,))
        if self._is_held(wanted):
            return
        failure = self._failures.get(wanted.id)
        is_loading = (wanted.id, None) in self._loads
        if failure is not None and not is_loading and self._clock() < failure.until_s:
            raise failure.error.with_traceback(None)  # it would grow with each time it is raised
        await self._fly((wanted.id, None), partial(self._load, wanted, self._allowed(wanted)))

    async def load_on(self, model: str, node: str) -> None:
        """Have one node hold a model, evicting what is idle there; at once where it does."""
        wanted = self._wanted(model)
        held = replica_of(self._view(node), wanted, self._fleet.learned)
        if held is None or held.status not in ("loaded", "recovering"):
            await self._fly((wanted.id, node), partial(self._load, wanted, (node,)))

    async def unload_from(self, model: str, node: str) -> None:
        """Have one node let a model go, once its requests are finished."""
        view = self._view(node)
        held = replica_of(view, self._wanted(model), self._fleet.learned)
        if held is None:
            raise ModelNotFound(model, hint=f"The node {node} does not list it.")
        await node_calls.unload(self._node_client, view.spec, held.id)
        self._probe_now(node)

    async def move(self, model: str, source: str, target: str) -> None:
        """Have one node hold what another lets go of afterwards."""
        await self.load_on(model, target)
        if source != target:
            await self.unload_from(model, source)

    async def spread(self, node: str) -> tuple[str, ...]:
        """Load elsewhere what only this node holds, as before it drains; the names of what was.

        Raises what the first that fits nowhere is refused with.
        """
        view = self._view(node)
        moved = []
        for replica in view.replicas:
            if replica.is_servable and await self.bring_elsewhere(node, replica):
                moved.append(self._meaning(view, replica).id)
        return tuple(moved)

    async def bring_elsewhere(self, node: str, replica: Replica) -> bool:
        """Have another node hold what this one does; whether it was loaded for that. Raises why it is not."""
        wanted = self._meaning(self._view(node), replica)
        if self._is_held(wanted, besides=node):
            return False
        others = tuple(name for name in self._allowed(wanted) if name != node)
        await self._fly((wanted.id, f"besides {node}"), partial(self._load, wanted, others))
        return True

    def name_of(self, node: str, replica: Replica) -> str:
        """By which name a node's replica is asked for: the catalogue's, else the node's own."""
        return self._meaning(self._view(node), replica).id

    def _meaning(self, view: NodeView, replica: Replica) -> CatalogueModel:
        """The catalogue's word for a node's replica, else the node's own."""
        return model_of(view, replica, self.catalogue, self._fleet.learned) or self._wanted(replica.id)

    def holders(self, model: str) -> tuple[str, ...]:
        """The nodes on which a model can be asked now; raises ModelNotFound."""
        wanted = self._wanted(model)
        held = (
            (view.name, replica_of(view, wanted, self._fleet.learned)) for view in self._fleet.nodes.values()
        )
        return tuple(name for name, replica in held if replica is not None and replica.is_servable)

    def is_loading(self, model: str) -> bool:
        """Whether a load of it is under way."""
        return any(name == model for name, _ in self._loads)

    async def close(self) -> None:
        """Wait for no load any more; the nodes go on with theirs."""
        self._is_closing = True
        tasks = list(self._loads.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fly(self, key: tuple[str, str | None], work: Work) -> None:
        """Wait for the one task under this key, begun now or by an earlier caller."""
        task = self._loads.get(key)
        if task is None:
            if self._is_closing:
                raise ShuttingDown("The gateway is shutting down.")
            if len(self._loads) >= MAX_LOADS:
                raise Overloaded(f"{len(self._loads)} models are being loaded already.")
            task = self._loads[key] = asyncio.create_task(work(), name=f"load {key[0]}")
            self._fleet.loading.add(key[0])
            task.add_done_callback(partial(self._landed, key))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ShuttingDown("The gateway is shutting down.") from None
            raise

    def _landed(self, key: tuple[str, str | None], task: asyncio.Task[None]) -> None:
        del self._loads[key]
        model, node = key
        if not self.is_loading(model):
            self._fleet.loading.discard(model)
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._failures.pop(model, None)
            self._fleet.loaded(model)
        elif isinstance(error, GanglionError) and node is None:
            self._remember(model, error)

    def _remember(self, model: str, error: GanglionError) -> None:
        now_s = self._clock()
        self._failures = {name: each for name, each in self._failures.items() if now_s < each.until_s}
        self._failures[model] = _Failure(error, now_s + self._hold_off_s)
        self._fleet.failed_to_load(model, error.code, str(error), for_s=self._hold_off_s)

    async def _load(self, model: CatalogueModel, allowed: tuple[str, ...]) -> None:
        """Give it a place and have it loaded there; where that fails, on the next best node."""
        tried: set[str] = set()
        error: GanglionError | None = None
        while True:
            claim = await self._places.claim(model, self.catalogue, only=allowed, tried=tried)
            if isinstance(claim, Infeasible):
                if self._is_held_by(model, allowed):
                    return  # somebody else had it loaded meanwhile
                raise self._told(model, error) if error is not None else placement_error(model.id, claim)
            try:
                await self._bring(model, claim.placement)
                return
            except GanglionError as failure:
                node = claim.placement.node
                logger.warning("node %s did not load %s: %s", node, model.id, failure.message)
                tried.add(node)
                error = failure
            finally:
                self._places.release(claim)

    def _told(self, model: CatalogueModel, error: GanglionError) -> GanglionError:
        """Why no node loaded it: what the catalogue promises is not unknown, only not to be had now."""
        if isinstance(error, ModelNotFound | EngineUnavailable) and model.id in self.catalogue.by_id:
            told = f"No node can load {model.id!r} now."
            # What a node says of it names other models, which are no client's to hear of.
            return ModelUnavailable(told, param="model", detail=f"{told} {error.hint or error.message}")
        return error

    async def _bring(self, model: CatalogueModel, placement: Placement) -> None:
        node = placement.node
        logger.info("node %s loads %s: %s", node, model.id, placement.why)
        self._probe_now(node)
        is_pinned = node in model.pinned_on
        name = await node_calls.load(self._node_client, self._spec(node), model, is_pinned=is_pinned)
        if model.id in self.catalogue.by_id:
            self._fleet.learn(node, name, model.id)
        self._probe_now(node)
        until_s = self._clock() + SEEN_S
        while not self._is_seen(node, name):
            if self._clock() >= until_s:
                raise ModelLoading(f"The node {node} says that it loaded {model.id!r}, and does not list it.")
            await self._news.wait(LOOK_AGAIN_S)

    def _is_held_by(self, model: CatalogueModel, nodes: tuple[str, ...]) -> bool:
        views = (self._fleet.nodes.get(node) for node in nodes)
        # A node that is gone, or takes no work, still lists what it held when it was last heard of.
        working = (view for view in views if view is not None and view.takes_work)
        held = (replica_of(view, model, self._fleet.learned) for view in working)
        return any(replica is not None and replica.is_servable for replica in held)

    def _is_seen(self, node: str, replica: str) -> bool:
        view = self._fleet.nodes.get(node)
        return view is not None and any(each.id == replica and each.is_servable for each in view.replicas)

    def _wanted(self, name: str) -> CatalogueModel:
        """The catalogue's word, else what nodes that list it say, by any of its names."""
        known = self.catalogue.by_id.get(name) or self.catalogue.by_alias.get(fold(name))
        if known is not None:
            return known
        listed = [replica for _, replica in self._listing(name) or self._listing(self._meant(name))]
        if not listed:
            raise ModelNotFound(name[:200])
        return CatalogueModel(
            id=listed[0].id,
            memory_mb=max(replica.memory_mb for replica in listed),
            priority=min(replica.priority for replica in listed),
        )

    def _allowed(self, model: CatalogueModel) -> tuple[str, ...]:
        """Where it may go: outside the catalogue only on nodes that list it, whose own its name is."""
        if model.id in self.catalogue.by_id:
            return tuple(self._fleet.nodes)
        return tuple(node for node, _ in self._listing(model.id))

    def _listing(self, name: str) -> list[tuple[str, Replica]]:
        views = self._fleet.nodes.values()
        return [(view.name, each) for view in views for each in view.replicas if each.id == name]

    def _meant(self, alias: str) -> str:
        """The id of a model that a node lists under another name; empty where none does."""
        replicas = (replica for view in self._fleet.nodes.values() for replica in view.replicas)
        folded = fold(alias)
        return next((each.id for each in replicas if folded in map(fold, each.aliases)), "")

    def _is_held(self, model: CatalogueModel, *, besides: str | None = None) -> bool:
        views = (view for view in self._fleet.nodes.values() if view.takes_work and view.name != besides)
        held = (replica_of(view, model, self._fleet.learned) for view in views)
        return any(replica is not None and replica.is_servable for replica in held)

    def _view(self, node: str) -> NodeView:
        view = self._fleet.nodes.get(node)
        if view is None:
            names = ", ".join(sorted(self._fleet.nodes)) or "none"
            raise InvalidValue(f"There is no node {node!r}.", param="node", hint=f"There are: {names}.")
        return view

    def _spec(self, node: str) -> NodeSpec:
        return self._view(node).spec
