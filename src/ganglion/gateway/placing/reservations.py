"""Reserves room for each load, in the order they come, and evicts idle models where that is needed.

Law: room that was reserved counts against its node until the load is over. A model that is to be evicted gets
no new request, and its node is asked once more whether it is idle.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ganglion.core.errors import GanglionError, UpstreamUnavailable
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.placing import node_calls
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.placing.held_models import replica_of
from ganglion.gateway.placing.placement import HOLDS, Infeasible, Placement, PlacementContext, place, required
from ganglion.gateway.upstream.node_client import NodeClient

_logger = logging.getLogger("ganglion.gateway")

PATIENCE_S: Final = 30.0
"""How long a load waits for a model to become idle."""
GRACE_S: Final = 0.25
"""How long a model that was just loaded stays: the requests for it are on their way."""
LOOK_AGAIN_S: Final = 0.5
"""How often to look where the fleet does not change."""


class FleetChanges:
    """Wakes tasks that wait for the fleet to change."""

    def __init__(self, fleet: Fleet) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        fleet.listen(self._wake)

    async def wait(self, timeout_s: float) -> None:
        """Return at the next change, or after so long."""
        coming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(coming)
        try:
            await asyncio.wait((coming,), timeout=timeout_s)
        finally:
            self._waiting.discard(coming)

    def _wake(self) -> None:
        for coming in self._waiting:
            if not coming.done():
                coming.set_result(None)


@dataclass(frozen=True, slots=True, eq=False)
class _PlacementClaim:
    """Room that was reserved."""

    model: str
    placement: Placement


class Reservations:
    """Room for loads on the nodes of a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        node_client: NodeClient,
        *,
        probe_now: Callable[[str], None],
        changes: FleetChanges,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._fleet = fleet
        self._node_client = node_client
        self._probe_now = probe_now
        self._changes = changes
        self._clock = clock
        self._patience_s = patience_s
        self._turn = asyncio.Lock()
        self._claimed: dict[_PlacementClaim, int] = {}
        self._fresh: dict[tuple[str, str], float] = {}

    async def claim(
        self, model: CatalogueModel, catalogue: FleetCatalogue, *, only: tuple[str, ...], tried: set[str]
    ) -> _PlacementClaim | Infeasible:
        """Room that is free or was made so; waits for its turn, and while only busy models could be evicted.

        Nodes that make no room are added to `tried`. A claim must be released.
        """
        async with self._turn:
            placement = await self._placed(model, catalogue, only, tried)
            if isinstance(placement, Infeasible):
                return placement
            claim = _PlacementClaim(model.id, placement)
            self._claimed[claim] = required(model, self._fleet.nodes.values(), self._fleet.learned)
            return claim

    def release(self, claim: _PlacementClaim) -> None:
        """The load is over, one way or the other."""
        self._claimed.pop(claim, None)
        self._fresh[claim.placement.node, claim.model] = self._clock() + GRACE_S

    async def _placed(
        self, model: CatalogueModel, catalogue: FleetCatalogue, only: tuple[str, ...], tried: set[str]
    ) -> Placement | Infeasible:
        until_s = self._clock() + self._patience_s
        busy: frozenset[tuple[str, str]] = frozenset()
        while True:
            kept = busy | self._just_loaded(catalogue)
            at = PlacementContext(catalogue, self._fleet.learned, self._reserved_mb(catalogue), kept)
            placement = place(model, self._fleet.nodes, at, only=only, excluded=tried)
            if isinstance(placement, Placement):
                try:
                    with self._fleet.draining_replicas(placement.node, placement.evictions):
                        met = await self._busy_among(placement)
                        if not met:
                            await self._evict(placement)
                            return placement
                    busy |= met
                except GanglionError as error:
                    _logger.warning(
                        "node %s could not make room for %s: %s", placement.node, model.id, error.message
                    )
                    tried.add(placement.node)
                continue
            left_s = until_s - self._clock()
            if not placement.is_passing or left_s <= 0:
                return placement
            await self._changes.wait(min(left_s, GRACE_S if self._fresh else LOOK_AGAIN_S))
            busy = frozenset()

    def _just_loaded(self, catalogue: FleetCatalogue) -> frozenset[tuple[str, str]]:
        """Replicas that were loaded a moment ago or are loading, whose requests have yet to come."""
        now_s = self._clock()
        self._fresh = {place: until_s for place, until_s in self._fresh.items() if until_s > now_s}
        found = set()
        coming = ((claim.placement.node, claim.model) for claim in self._claimed)
        for node, name in (*self._fresh, *coming):
            view = self._fleet.nodes.get(node)
            model = catalogue.by_id.get(name) or CatalogueModel(id=name)
            held = None if view is None else replica_of(view, model, self._fleet.learned)
            if held is not None:
                found.add((node, held.id))
        return frozenset(found)

    def _reserved_mb(self, catalogue: FleetCatalogue) -> dict[tuple[str, int], int]:
        """Memory that was claimed and does not show at its node yet, in equal parts on its devices."""
        reserved_mb: dict[tuple[str, int], int] = {}
        for claim, size_mb in self._claimed.items():
            view = self._fleet.nodes.get(claim.placement.node)
            model = catalogue.by_id.get(claim.model) or CatalogueModel(id=claim.model)
            held = None if view is None else replica_of(view, model, self._fleet.learned)
            if held is None or held.status not in HOLDS:
                devices = claim.placement.devices
                for device in devices:
                    key = claim.placement.node, device
                    reserved_mb[key] = reserved_mb.get(key, 0) - (-size_mb // len(devices))
        return reserved_mb

    async def _busy_among(self, placement: Placement) -> frozenset[tuple[str, str]]:
        """Which of those to be evicted have work by now: what the fleet knows may be seconds old."""
        if not placement.evictions:
            return frozenset()
        spec = self._fleet.nodes[placement.node].spec
        busy = await node_calls.busy(self._node_client, spec)
        return frozenset((placement.node, replica) for replica in placement.evictions if replica in busy)

    async def _evict(self, placement: Placement) -> None:
        for replica in placement.evictions:
            view = self._fleet.nodes.get(placement.node)
            if view is None:
                raise UpstreamUnavailable(f"The node {placement.node} left the fleet.")
            _logger.info("evicting %s from node %s to make room", replica, placement.node)
            await node_calls.unload(self._node_client, view.spec, replica)
            self._fleet.mark_unloaded(placement.node, replica)
        if placement.evictions:
            self._probe_now(placement.node)
