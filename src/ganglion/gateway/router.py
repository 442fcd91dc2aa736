"""The Chooser of a gateway: routing over the fleet as it is now."""

from typing import Final

from ganglion.gateway.catalogue import EMPTY, Catalogue
from ganglion.gateway.decision import Asked, Chosen, Decision, Translated
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.routing import route
from ganglion.gateway.routing_table import RoutingTable

REMEMBERED: Final = 16_384
"""Conversations whose last node is remembered, the latest ones."""
_PLACED: Final = (Chosen, Translated)


class Router:
    """Decides for each request; its table is made anew at the first request after a change."""

    def __init__(self, fleet: Fleet, catalogue: Catalogue = EMPTY) -> None:
        self._fleet = fleet
        self._catalogue = catalogue
        self._table = self._made(None)
        self._is_stale = False
        self._turn = 0
        self._last: dict[str, str] = {}
        fleet.listen(self._changed)

    def choose(self, asked: Asked) -> Decision:
        """Where a request goes now."""
        if self._is_stale:
            self._table = self._made(self._table)
            self._is_stale = False
        self._turn += 1
        affinity = asked.affinity
        if not affinity:
            return route(self._table, asked, self._fleet, self._turn)
        decision = route(self._table, asked, self._fleet, self._turn, self._last.get(affinity, ""))
        if isinstance(decision, _PLACED):
            self._remember(affinity, decision.node.name)
        return decision

    def _remember(self, affinity: str, node: str) -> None:
        self._last.pop(affinity, None)
        self._last[affinity] = node
        if len(self._last) > REMEMBERED:
            del self._last[next(iter(self._last))]

    def replace(self, catalogue: Catalogue) -> None:
        """Another catalogue from now on."""
        self._catalogue = catalogue
        self._changed()

    def _changed(self) -> None:
        self._is_stale = True

    def _made(self, before: RoutingTable | None) -> RoutingTable:
        return RoutingTable(self._fleet.nodes, self._catalogue, self._fleet.learned, before=before)
