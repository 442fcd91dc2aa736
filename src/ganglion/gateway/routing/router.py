"""The router of a gateway: chooses nodes over the fleet as it is now."""

from collections.abc import Iterator
from typing import Final

from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView, Replica
from ganglion.gateway.placing.catalogue import EMPTY_CATALOGUE, FleetCatalogue
from ganglion.gateway.routing.decision import ChosenNode, RoutingDecision, RoutingRequest, TranslatedNode
from ganglion.gateway.routing.policies import route
from ganglion.gateway.routing.table import RoutingTable

_REMEMBERED: Final = 16_384
"""Conversations whose last node is remembered, the latest ones."""
_OTHER: Final = "other"
"""Instead of every name that nobody knows: clients may write any."""
_PLACED: Final = (ChosenNode, TranslatedNode)


class Router:
    """Decides for each request; its table is rebuilt at the first request after a change."""

    def __init__(self, fleet: Fleet, catalogue: FleetCatalogue = EMPTY_CATALOGUE) -> None:
        self._fleet = fleet
        self._catalogue = catalogue
        self._table = self._build(None)
        self._is_stale = False
        self._turn = 0
        self._last: dict[str, str] = {}
        fleet.listen(self._changed)

    def choose(self, request: RoutingRequest) -> RoutingDecision:
        """Decide where a request goes now."""
        if self._is_stale:
            self._renew()
        self._turn += 1
        affinity = request.affinity
        if not affinity:
            return route(self._table, request, self._fleet, self._turn)
        decision = route(self._table, request, self._fleet, self._turn, self._last.get(affinity, ""))
        if isinstance(decision, _PLACED):
            self._remember(affinity, decision.node.name)
        return decision

    def booked_as(self, name: str) -> str:
        """The name that a client's name is booked under: one that the fleet or the catalogue has."""
        entry = self._current.entry(name)
        if entry is None:
            return _OTHER
        if entry.model is not None:
            return entry.model.id
        return entry.booked_as[0]

    def may_answer(self, name: str) -> tuple[str, ...]:
        """Every name that an answer may be booked under, fallbacks among them."""
        entry = self._current.entry(name)
        if entry is None:
            return ()
        return entry.booked_as if entry.model is None else tuple(self._with_fallbacks(entry.model.id))

    def _with_fallbacks(self, model: str) -> Iterator[str]:
        yield model
        for fallback in self._catalogue.by_id[model].fallbacks:
            yield from self._with_fallbacks(fallback)

    def listed_as(self, view: NodeView, replica: Replica) -> str:
        """The name of a node's replica for clients: the catalogue's, else the node's own."""
        return self._current.booked_as(view, replica)

    @property
    def _current(self) -> RoutingTable:
        if self._is_stale:
            self._renew()
        return self._table

    def _renew(self) -> None:
        self._table = self._build(self._table)
        self._is_stale = False

    def _remember(self, affinity: str, node: str) -> None:
        self._last.pop(affinity, None)
        self._last[affinity] = node
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]

    def replace(self, catalogue: FleetCatalogue) -> None:
        """Use another catalogue from now on."""
        self._catalogue = catalogue
        self._changed()

    def _changed(self) -> None:
        self._is_stale = True

    def _build(self, before: RoutingTable | None) -> RoutingTable:
        return RoutingTable(self._fleet.nodes, self._catalogue, self._fleet.learned, before=before)
