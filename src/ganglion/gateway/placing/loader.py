"""Loads models on nodes that have room for them, and unloads them where they are not needed.

Law: one load for each model however many requests wait; all of them get its outcome. A load goes on when the
client that needed it leaves.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Container, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ganglion.core.errors import (
    EngineUnavailable,
    GanglionError,
    ModelLoading,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    ShuttingDown,
)
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView, Replica
from ganglion.gateway.placing import node_calls
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.held_models import model_of, replica_of
from ganglion.gateway.placing.placement import Infeasible, Placement, placement_error
from ganglion.gateway.placing.reservations import LOOK_AGAIN_S, PATIENCE_S, FleetChanges, Reservations
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.registry.naming.names import fold

_logger = logging.getLogger("ganglion.gateway")

_HOLD_OFF_S: Final = 5.0
"""How long a failed load is not tried again; requests until then get the same error at once."""
_LISTED_S: Final = 15.0
"""From when a node says that a load is over until it must list the model."""
_MAX_LOADS: Final = 256
"""Models that may be loading at once; further ones are refused for now."""

_Work = Callable[[], Coroutine[Any, Any, None]]


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
        hold_off_s: float = _HOLD_OFF_S,
    ) -> None:
        self.catalogue = catalogue
        """May be replaced by another one at any time."""
        self._fleet = fleet
        self._node_client = node_client
        self._probe_now = probe_now
        self._clock = clock
        self._hold_off_s = hold_off_s
        self._changes = FleetChanges(fleet)
        self._reservations = Reservations(
            fleet,
            node_client,
            probe_now=probe_now,
            changes=self._changes,
            clock=clock,
            patience_s=patience_s,
        )
        self._loads: dict[tuple[str, str | None], asyncio.Task[None]] = {}
        self._failures: dict[str, _Failure] = {}
        self._is_closing = False

    async def load(self, model: str) -> None:
        """Return once some node holds the model; raises why it cannot be."""
        target = self._model_named(model)
        # A load on a certain node that is under way may be all that is needed.
        for task in [task for (name, node), task in self._loads.items() if name == target.id and node]:
            await asyncio.wait((task,))
        if self._is_served(target, self._fleet.nodes):
            return
        failure = self._failures.get(target.id)
        is_loading = (target.id, None) in self._loads
        if failure is not None and not is_loading and self._clock() < failure.until_s:
            raise failure.error.with_traceback(None)  # it would grow with each time it is raised
        await self._run_once((target.id, None), partial(self._load, target, self._allowed(target)))

    async def load_on(self, model: str, node: str) -> None:
        """Load a model on one node, evicting what is idle there; returns at once where it is loaded."""
        target = self._model_named(model)
        held = replica_of(self._fleet.node_named(node), target, self._fleet.learned)
        if held is None or held.status not in ("loaded", "recovering"):
            await self._run_once((target.id, node), partial(self._load, target, (node,)))

    async def unload_from(self, model: str, node: str) -> None:
        """Unload a model from one node, once its requests are finished."""
        view = self._fleet.node_named(node)
        held = replica_of(view, self._model_named(model), self._fleet.learned)
        if held is None:
            raise ModelNotFound(model, hint=f"The node {node} does not list it.")
        await node_calls.unload(self._node_client, view.spec, held.id)
        self._probe_now(node)

    async def load_elsewhere(self, node: str, replica: Replica) -> bool:
        """Load a node's replica on another one too; False where one holds it. Raises why it cannot be."""
        target = self._model_of(self._fleet.node_named(node), replica)
        if self._is_served(target, self._fleet.nodes.keys() - {node}):
            return False
        others = tuple(name for name in self._allowed(target) if name != node)
        await self._run_once((target.id, f"besides {node}"), partial(self._load, target, others))
        return True

    def name_of(self, node: str, replica: Replica) -> str:
        """The name by which clients request a node's replica: the catalogue's, else the node's own."""
        return self._model_of(self._fleet.node_named(node), replica).id

    def _model_of(self, view: NodeView, replica: Replica) -> CatalogueModel:
        """What the catalogue says of a node's replica, else the node."""
        return model_of(view, replica, self.catalogue, self._fleet.learned) or self._model_named(replica.id)

    def holders(self, model: str) -> tuple[str, ...]:
        """The nodes on which a model is loaded now; raises ModelNotFound."""
        return tuple(view.name for view in self._holders(self._model_named(model)))

    def is_loading(self, model: str) -> bool:
        """Whether a load of it is under way."""
        return any(name == model for name, _ in self._loads)

    async def close(self) -> None:
        """Wait for no load any more; the nodes finish theirs."""
        self._is_closing = True
        tasks = list(self._loads.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_once(self, key: tuple[str, str | None], work: _Work) -> None:
        """Wait for the one task under this key, begun now or by an earlier caller."""
        task = self._loads.get(key)
        if task is None:
            if self._is_closing:
                raise ShuttingDown("The gateway is shutting down.")
            if len(self._loads) >= _MAX_LOADS:
                raise Overloaded(f"{len(self._loads)} models are being loaded already.")
            task = self._loads[key] = asyncio.create_task(work(), name=f"load {key[0]}")
            self._fleet.loading.add(key[0])
            task.add_done_callback(partial(self._ended, key))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ShuttingDown("The gateway is shutting down.") from None
            raise

    def _ended(self, key: tuple[str, str | None], task: asyncio.Task[None]) -> None:
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
        """Reserve room and load it there; where that fails, on the next best node."""
        tried: set[str] = set()
        error: GanglionError | None = None
        while True:
            claim = await self._reservations.claim(model, self.catalogue, only=allowed, tried=tried)
            if isinstance(claim, Infeasible):
                if self._is_served(model, allowed):
                    return  # another caller had it loaded meanwhile
                raise (
                    self._client_error(model, error)
                    if error is not None
                    else placement_error(model.id, claim)
                )
            try:
                await self._load_on(model, claim.placement)
                return
            except GanglionError as failure:
                node = claim.placement.node
                _logger.warning("node %s failed to load %s: %s", node, model.id, failure.message)
                tried.add(node)
                error = failure
            finally:
                self._reservations.release(claim)

    def _client_error(self, model: CatalogueModel, error: GanglionError) -> GanglionError:
        """The error for clients: what the catalogue promises is not unknown, only unavailable now."""
        if isinstance(error, ModelNotFound | EngineUnavailable) and model.id in self.catalogue.by_id:
            message = f"No node can load {model.id!r} now."
            # What a node says of it names other models, which are not for clients.
            return ModelUnavailable(message, param="model", detail=f"{message} {error.hint or error.message}")
        return error

    async def _load_on(self, model: CatalogueModel, placement: Placement) -> None:
        node = placement.node
        _logger.info("loading %s on node %s: %s", model.id, node, placement.why)
        self._probe_now(node)
        is_pinned = node in model.pinned_on
        name = await node_calls.load(
            self._node_client, self._fleet.node_named(node).spec, model, is_pinned=is_pinned
        )
        if model.id in self.catalogue.by_id:
            self._fleet.learn(node, name, model.id)
        self._probe_now(node)
        until_s = self._clock() + _LISTED_S
        while not self._is_listed(node, name):
            if self._clock() >= until_s:
                raise ModelLoading(f"The node {node} says that it loaded {model.id!r}, and does not list it.")
            await self._changes.wait(LOOK_AGAIN_S)

    def _holders(self, model: CatalogueModel) -> Iterator[NodeView]:
        """The nodes on which a model is loaded, also those that take no new requests."""
        for view in self._fleet.nodes.values():
            replica = replica_of(view, model, self._fleet.learned)
            if replica is not None and replica.is_servable:
                yield view

    def _is_served(self, model: CatalogueModel, nodes: Container[str]) -> bool:
        """Whether requests for a model can go to one of these nodes now."""
        # A node that is gone, or takes no work, still lists what it held when it was last heard from.
        return any(view.takes_work and view.name in nodes for view in self._holders(model))

    def _is_listed(self, node: str, replica: str) -> bool:
        view = self._fleet.nodes.get(node)
        return view is not None and any(each.id == replica and each.is_servable for each in view.replicas)

    def _model_named(self, name: str) -> CatalogueModel:
        """What the catalogue says of a model, else nodes that list it, by any of its names."""
        known = self.catalogue.by_id.get(name) or self.catalogue.by_alias.get(fold(name))
        if known is not None:
            return known
        listed = [replica for _, replica in self._listing(name) or self._listing(self._id_of_alias(name))]
        if not listed:
            raise ModelNotFound(name[:200])
        return CatalogueModel(
            id=listed[0].id,
            memory_mb=max(replica.memory_mb for replica in listed),
            priority=min(replica.priority for replica in listed),
        )

    def _allowed(self, model: CatalogueModel) -> tuple[str, ...]:
        """Nodes that may load it: all for a model of the catalogue, else those that list its name."""
        if model.id in self.catalogue.by_id:
            return tuple(self._fleet.nodes)
        return tuple(node for node, _ in self._listing(model.id))

    def _listing(self, name: str) -> list[tuple[str, Replica]]:
        views = self._fleet.nodes.values()
        return [(view.name, each) for view in views for each in view.replicas if each.id == name]

    def _id_of_alias(self, alias: str) -> str:
        """The id of a model that a node lists under another name; empty where none does."""
        replicas = (replica for view in self._fleet.nodes.values() for replica in view.replicas)
        folded = fold(alias)
        return next((each.id for each in replicas if folded in map(fold, each.aliases)), "")
