"""The parts of a gateway, put together: who is there, who answers, who may ask."""

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace

from ganglion.gateway.engine import FleetEngine
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.following import Follower
from ganglion.gateway.inquiry import PollSettings
from ganglion.gateway.loader import FleetLoader
from ganglion.gateway.membership import Membership, first_epoch
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.node_queue import NodeQueue
from ganglion.gateway.outbound import Outbound
from ganglion.gateway.poller import Poller
from ganglion.gateway.pool import Pools
from ganglion.gateway.quarantine import Quarantine
from ganglion.gateway.remote import RemoteDeadlines
from ganglion.gateway.router import Router
from ganglion.gateway.scaler import Scaler
from ganglion.gateway.shared import Shared
from ganglion.server.gateway.offer import Offer
from ganglion.server.gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class Lead:
    """What only one process of a gateway does."""

    poller: Poller
    membership: Membership
    loader: FleetLoader
    scaler: Scaler


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything about the fleet that a gateway holds while it runs."""

    fleet: Fleet
    pools: Pools
    outbound: Outbound
    router: Router
    engine: FleetEngine
    loader: FleetLoader | Follower
    quarantine: Quarantine
    offer: Offer
    lead: Lead | None
    """None in a worker that follows another one."""

    @property
    def poke(self) -> Callable[[str], None]:
        """Is told the name of a node that could not be reached."""
        return self.loader.poke if isinstance(self.loader, Follower) else self._lead.poller.poke

    def works(self) -> tuple[Coroutine[None, None, None], ...]:
        """What goes on for as long as it runs."""
        if isinstance(self.loader, Follower):
            return self.loader.run(), self.loader.pass_on()
        lead = self._lead
        return lead.poller.run(), lead.membership.keep_expiring(), lead.scaler.run()

    def renew(self, settings: GatewaySettings) -> None:
        """Other declared nodes and another catalogue from now on; what runs goes on."""
        self.router.replace(settings.catalogue)
        self.offer.replace(settings.catalogue)
        if self.lead is not None:
            self.lead.loader.catalogue = self.lead.scaler.catalogue = settings.catalogue
            self.lead.membership.declare(_parts_of(settings.nodes, settings.workers))

    @property
    def _lead(self) -> Lead:
        assert self.lead is not None
        return self.lead


def assembled(settings: GatewaySettings, offer: Offer, leader: NodeSpec | None = None) -> Assembly:
    """The parts over the declared nodes, or those of a worker that follows `leader`; nothing runs yet."""
    queue = NodeQueue(max_requests=settings.queue_requests, max_wait_s=settings.queue_s)
    fleet = Fleet(_parts_of(settings.nodes, settings.workers), queue=queue)
    pools, quarantine = Pools(settings.connect_s), Quarantine()
    outbound = Outbound(pools)
    router = Router(fleet, settings.catalogue)
    deadlines = RemoteDeadlines(head_s=settings.first_byte_s, idle_s=settings.idle_s)
    if leader is not None:
        follower = Follower(fleet, outbound, leader, quarantine)
        engine = FleetEngine(
            fleet,
            router,
            outbound,
            follower,
            catalogue=lambda: offer.listed,
            listed_as=router.listed_as,
            poke=follower.poke,
            deadlines=deadlines,
            quarantine=quarantine,
        )
        return Assembly(fleet, pools, outbound, router, engine, follower, quarantine, offer, None)
    polls = PollSettings(every_s=settings.poll_s, wait_s=min(settings.poll_s, PollSettings().wait_s))
    poller = Poller(fleet, outbound, polls)
    loader = FleetLoader(fleet, settings.catalogue, outbound, poke=poller.poke)
    membership = Membership(
        fleet,
        first_epoch=first_epoch(time.time()),
        lease_s=settings.lease_s,
        node_key=settings.node_key,
    )
    engine = FleetEngine(
        fleet,
        router,
        outbound,
        loader,
        catalogue=lambda: offer.listed,
        listed_as=router.listed_as,
        poke=poller.poke,
        deadlines=deadlines,
        quarantine=quarantine,
    )
    lead = Lead(poller, membership, loader, Scaler(fleet, settings.catalogue, loader))
    return Assembly(fleet, pools, outbound, router, engine, loader, quarantine, offer, lead)


def inherit(parts: Assembly, told: Shared | None) -> None:
    """Lead on from where another process left: its views, leases, and what it refused; None for nowhere."""
    if told is None:
        return
    assert parts.lead is not None
    declared = tuple(view.spec for view in parts.fleet.nodes.values())
    parts.fleet.follow(
        {view.name: view for view in told.views},
        resting=told.resting,
        learned={(node, replica): model for node, replica, model in told.learned},
        loading=frozenset(),
    )
    parts.lead.membership.adopt()
    parts.lead.membership.declare(declared)  # the configuration may have been read again since
    for digest in told.poison:
        parts.quarantine.hold(digest)


def _parts_of(specs: tuple[NodeSpec, ...], workers: int) -> tuple[NodeSpec, ...]:
    """Each worker's equal part of every cap, since none knows what the others have running."""
    return tuple(
        spec
        if spec.max_in_flight is None
        else replace(spec, max_in_flight=max(1, spec.max_in_flight // workers))
        for spec in specs
    )
