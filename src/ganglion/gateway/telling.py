"""Tells other processes of one gateway what its fleet is like, each time only what they do not know yet."""

import secrets
from dataclasses import dataclass

from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.node import NodeView
from ganglion.gateway.fleet.quarantine import Quarantine
from ganglion.gateway.placing.reservations import FleetChanges
from ganglion.gateway.shared import Shared


@dataclass(frozen=True, slots=True)
class _Mark:
    view: NodeView
    number: int
    """Of the version in which it was new."""


class Telling:
    """Counts versions of a fleet, as often as somebody asks."""

    def __init__(self, fleet: Fleet, quarantine: Quarantine) -> None:
        self._fleet = fleet
        self._quarantine = quarantine
        self._news = FleetChanges(fleet)
        self._boot = secrets.token_hex(8)
        self._number = 0
        self._marks: dict[str, _Mark] = {}
        self._besides: object = None
        self._is_closed = False

    def version(self) -> str:
        """Of what would be told now."""
        self._look()
        return f"{self._boot}.{self._number}"

    async def news(self, since: str, wait_s: float) -> Shared:
        """What came since a version, as soon as something did; after the wait also nothing."""
        if self.version() == since and not self._is_closed:
            await self._news.wait(wait_s)
        return self.told(since)

    def told(self, since: str) -> Shared:
        """What came since a version, now."""
        version = self.version()
        boot, _, number = since.rpartition(".")
        known = int(number) if boot == self._boot and number.isdecimal() else 0
        fleet = self._fleet
        return Shared(
            version=version,
            names=tuple(fleet.nodes),
            views=tuple(mark.view for mark in self._marks.values() if mark.number > known),
            resting=fleet.resting,
            learned=tuple((*key, model) for key, model in fleet.learned.items()),
            loading=frozenset(fleet.loading),
            lapsed=fleet.lapsed,
            failed_loads=fleet.failed_loads,
            poison=self._quarantine.held,
        )

    def hurry(self) -> None:
        """Tell whoever waits what there is: something changed besides the fleet."""
        self._news.tell()

    def close(self) -> None:
        """Let nobody wait for news any more."""
        self._is_closed = True
        self._news.tell()

    def _look(self) -> None:
        fleet, marks = self._fleet, self._marks
        besides = (
            frozenset(fleet.nodes),
            fleet.resting,
            fleet.learned,
            frozenset(fleet.loading),
            fleet.lapsed,
            fleet.failed_loads,
            self._quarantine.held,
        )
        changed = [
            view for name, view in fleet.nodes.items() if name not in marks or marks[name].view is not view
        ]
        if not changed and besides == self._besides:
            return
        self._besides = besides
        self._number += 1
        fresh = {view.name: _Mark(view, self._number) for view in changed}
        self._marks = {name: fresh.get(name) or marks[name] for name in fleet.nodes}
