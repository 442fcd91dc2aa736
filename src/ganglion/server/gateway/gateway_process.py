"""The parts of a gateway's process: the front, the desk and the relay, over one fleet and one set of keys."""

import contextlib
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.routing import BaseRoute

from ganglion.core.errors import GanglionError
from ganglion.gateway.access.admission import OpenAdmissions
from ganglion.gateway.access.gatekeeper import KeyGatekeeper
from ganglion.gateway.engine import FleetEngine
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.health import FleetHealthCheck
from ganglion.gateway.fleet.membership import NodeLeases, first_epoch
from ganglion.gateway.fleet.node import NodeSpec
from ganglion.gateway.fleet.node_queue import NodeQueue
from ganglion.gateway.fleet.probe import PollSettings
from ganglion.gateway.fleet.quarantine import Quarantine
from ganglion.gateway.following import Follower
from ganglion.gateway.metrics import FleetMetrics, GatewayMetrics
from ganglion.gateway.placing.catalogue_view import CatalogueView
from ganglion.gateway.placing.loader import FleetLoader
from ganglion.gateway.placing.scaler import Scaler
from ganglion.gateway.proxy.listener import ProxyListener, ProxySettings
from ganglion.gateway.proxy.tracing import open_tracing
from ganglion.gateway.remote import RemoteDeadlines
from ganglion.gateway.routing.router import Router
from ganglion.gateway.shared import Shared
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.server.gateway.control_app import MetricsPage, build_control_app
from ganglion.server.gateway.fleet_endpoints import FleetEndpoints, GatewayHealthEndpoints, nothing_elsewhere
from ganglion.server.gateway.key_meter import KeyMeter
from ganglion.server.gateway.settings import GatewaySettings, Reload
from ganglion.server.gateway.unix_socket import serve_on_unix_socket, socket_folder
from ganglion.server.gateway.worker import LEADER, Colleagues, Worker
from ganglion.server.gateway.worker_door import WorkerDoor
from ganglion.server.gateway.worker_pages import merged
from ganglion.server.life.bind import InsecureBind, grpc_port_of, is_loopback
from ganglion.server.life.drain import Gate
from ganglion.server.life.signals import ApplyConfig, check_keys_remain
from ganglion.server.life.storage import open_store
from ganglion.server.middleware.origin import OriginRules
from ganglion.server.prometheus import Metrics
from ganglion.server.settings import ServerSettings
from ganglion.server.state import AppState
from ganglion.store.opening import MEMORY, open_access

if TYPE_CHECKING:
    from ganglion.server.gateway.relay.relay_endpoint import RelayEndpoint


@dataclass(frozen=True, slots=True)
class Lead:
    """What only one process of a gateway does."""

    poller: FleetHealthCheck
    membership: NodeLeases
    loader: FleetLoader
    scaler: Scaler


@dataclass(frozen=True, slots=True)
class FleetParts:
    """Everything about the fleet that a gateway holds while it runs."""

    fleet: Fleet
    pools: ConnectionPools
    outbound: NodeClient
    router: Router
    engine: FleetEngine
    loader: FleetLoader | Follower
    quarantine: Quarantine
    offer: CatalogueView
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


def build_fleet_parts(
    settings: GatewaySettings, offer: CatalogueView, leader: NodeSpec | None = None
) -> FleetParts:
    """The parts over the declared nodes, or those of a worker that follows `leader`; nothing runs yet."""
    queue = NodeQueue(max_requests=settings.queue_requests, max_wait_s=settings.queue_s)
    fleet = Fleet(_parts_of(settings.nodes, settings.workers), queue=queue)
    pools, quarantine = ConnectionPools(settings.connect_s), Quarantine()
    outbound = NodeClient(pools)
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
        return FleetParts(fleet, pools, outbound, router, engine, follower, quarantine, offer, None)
    polls = PollSettings(every_s=settings.poll_s, wait_s=min(settings.poll_s, PollSettings().wait_s))
    poller = FleetHealthCheck(fleet, outbound, polls)
    loader = FleetLoader(fleet, settings.catalogue, outbound, poke=poller.poke)
    membership = NodeLeases(
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
    return FleetParts(fleet, pools, outbound, router, engine, loader, quarantine, offer, lead)


def inherit(parts: FleetParts, told: Shared | None) -> None:
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


_KNOWN_HOSTS: Final = 256
"""Names by which clients call a gateway: a few, and parsing one costs more than all else about a head."""


@dataclasses.dataclass(frozen=True, slots=True)
class GatewayProcess:
    """What the front, the desk and the relay of one process share."""

    settings: GatewaySettings
    server: ServerSettings
    worker: Worker | None
    gatekeeper: KeyGatekeeper
    state: AppState
    parts: FleetParts
    colleagues: Colleagues | None
    gate: Gate
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    front_metrics: GatewayMetrics = dataclasses.field(default_factory=GatewayMetrics)
    open_places: OpenAdmissions = dataclasses.field(default_factory=OpenAdmissions)

    @property
    def _is_leading(self) -> bool:
        return self.parts.lead is not None

    async def relay(self) -> "RelayEndpoint | None":
        """Where sessions pass; None where none are served."""
        if not self.server.has_grpc or not self._is_leading:
            return None
        # Named as text: no fork may hold gRPC, and who serves no sessions spares a fifth of the memory.
        relay: RelayEndpoint = import_module("ganglion.server.gateway.relay.relay_endpoint").RelayEndpoint(
            dataclasses.replace(self.server, grpc_port=grpc_port_of(self.settings.server, self.server.port)),
            fleet=self.parts.fleet,
            chooser=self.parts.router,
            gatekeeper=self.gatekeeper,
            loader=self.parts.loader,
            secret=await _relay_secret(self.state),
            metrics=self.metrics,
        )
        return relay

    async def open_desk(self, stack: contextlib.AsyncExitStack) -> Path:
        """Serve the desk, and what other workers are told, each on a socket; says where the desk is."""
        told_of = self.parts.fleet if self._is_leading else None
        fleet_metrics = FleetMetrics(self.front_metrics, told_of, self.gatekeeper.usage_counts)

        async def own_page() -> bytes:
            return await fleet_metrics.page() + await self.metrics.page(())

        if self.worker is not None:
            await self._open_worker_door(self.worker, own_page, stack)
        app = build_control_app(
            self.parts.engine,
            self.server,
            self.gate,
            doors=_fleet_routes(self.parts, self.server, self.gate, self.colleagues),
            state=dataclasses.replace(self.state, meter=KeyMeter(self.gatekeeper, self.front_metrics)),
            metrics=self.metrics,
            page=_page(own_page, self.colleagues),
            keys=self.gatekeeper.keys,
            places=self.open_places,
        )
        place = _control_app_path(stack, self.worker)
        await stack.enter_async_context(serve_on_unix_socket(app, self.server, place))
        return place

    async def _open_worker_door(
        self, worker: Worker, page: MetricsPage, stack: contextlib.AsyncExitStack
    ) -> None:
        parts = self.parts
        door = WorkerDoor(parts.fleet, parts.loader, self.gate, parts.quarantine, poke=parts.poke, page=page)
        if self._is_leading:
            door.spread_poison()
        path = worker.door_path(worker.place)
        await stack.enter_async_context(serve_on_unix_socket(door.app(), self.server, path))
        stack.callback(door.close)

    def read_again(self, reload: Reload) -> ApplyConfig:
        """What puts the configuration as it is now into force; raises what is wrong with it."""
        fresh = self.settings.renewed(reload())
        keys = self.gatekeeper.keys
        check_keys_remain(is_keyed=keys.has_static, would_be_keyed=fresh.has_static_keys)

        def apply() -> None:
            self.parts.renew(fresh)
            keys.replace_static(fresh.server.api_keys, fresh.server.admin_keys)

        return apply

    def front(self, desk: Path) -> ProxyListener:
        """The public port, before a desk."""
        parts, worker = self.parts, self.worker
        return ProxyListener(
            _proxy_settings(self.settings, self.server, worker),
            fleet=parts.fleet,
            chooser=parts.router,
            gatekeeper=self.gatekeeper,
            loader=parts.loader,
            pools=parts.pools,
            desk=NodeSpec("desk", f"unix://{desk}"),
            metrics=self.front_metrics,
            poke=parts.poke,
            admin=None if worker is None or self._is_leading else worker.leading_desk,
            quarantine=parts.quarantine,
            open_places=self.open_places,
        )


async def build_gateway(
    settings: GatewaySettings,
    server: ServerSettings,
    worker: Worker | None,
    stack: contextlib.AsyncExitStack,
) -> GatewayProcess:
    """Open the databases, and put together who is there; raises StartRefused."""
    is_leading = worker is None or worker.is_leader
    leader = None if worker is None or is_leading else worker.door(LEADER)
    parts = build_fleet_parts(settings, CatalogueView(settings.catalogue), leader)
    gatekeeper = await stack.enter_async_context(_gatekeeper(settings, parts))
    _check_bind(server, is_open=gatekeeper.keys.is_open)
    state = (
        AppState()
        if settings.storage is None
        else await stack.enter_async_context(open_store(settings.storage))
    )
    stack.callback(parts.pools.close)
    stack.push_async_callback(parts.loader.close)
    colleagues = None if worker is None else Colleagues(worker, parts.outbound)
    if colleagues is not None and is_leading:
        inherit(parts, await colleagues.legacy())
    return GatewayProcess(
        settings, server, worker, gatekeeper, state, parts, colleagues, Gate(server.max_in_flight)
    )


async def _relay_secret(state: AppState) -> bytes:
    return secrets.token_bytes(32) if state.store is None else await state.store.secret("relay")


def _control_app_path(stack: contextlib.AsyncExitStack, worker: Worker | None) -> Path:
    """Where only this user gets in."""
    if worker is not None:
        return worker.desk_path(worker.place)
    return stack.enter_context(socket_folder()) / "desk"


def _page(own: MetricsPage, colleagues: Colleagues | None) -> MetricsPage:
    """What `/metrics` answers: of every worker, where there are several."""
    if colleagues is None:
        return own

    async def every() -> bytes:
        return merged({LEADER: await own(), **await colleagues.pages()})

    return every


@contextlib.asynccontextmanager
async def _gatekeeper(settings: GatewaySettings, parts: FleetParts) -> AsyncGenerator[KeyGatekeeper, None]:
    access = await open_access(MEMORY if settings.storage is None else settings.storage.place)
    try:
        offer, router, server = parts.offer, parts.router, settings.server
        gatekeeper = KeyGatekeeper(
            access,
            server.api_keys,
            offer.price,
            dearest=lambda name: offer.dearest(router.may_answer(name)),
            booked_as=router.booked_as,
            open_answer_tokens=settings.open_answer_tokens,
            admin_keys=server.admin_keys,
            most_urgent=server.most_urgent,
        )
        await gatekeeper.start()
        try:
            yield gatekeeper
        finally:
            await gatekeeper.close()
    finally:
        await access.close()


def _check_bind(server: ServerSettings, *, is_open: bool) -> None:
    if is_open and not is_loopback(server.host):
        raise InsecureBind(
            f"{server.host} can be reached from other machines and there is no key.",
            hint="Make one with ganglion keys create, set one with --api-key, or bind 127.0.0.1.",
        )


def _fleet_routes(
    parts: FleetParts,
    server: ServerSettings,
    gate: Gate,
    colleagues: Colleagues | None,
) -> list[BaseRoute]:
    doors = GatewayHealthEndpoints(parts.fleet, parts.router, gate, parts.offer, time.monotonic()).routes()
    if parts.lead is not None:
        fleet_doors = FleetEndpoints(
            fleet=parts.fleet,
            chooser=parts.router,
            membership=parts.lead.membership,
            loader=parts.lead.loader,
            poke=parts.poke,
            settings=server,
            offer=parts.offer,
            elsewhere=nothing_elsewhere if colleagues is None else colleagues.in_flight,
        )
        doors += fleet_doors.routes()
    return doors


def _proxy_settings(
    settings: GatewaySettings, server: ServerSettings, worker: Worker | None
) -> ProxySettings:
    rules = OriginRules(
        is_loopback_bind=is_loopback(server.host),
        allowed_hosts=server.allowed_hosts,
        cors_origins=server.cors_origins,
    )

    known: set[bytes | None] = set()

    def guard(
        host: bytes | None, origin: bytes | None, site: bytes | None, is_public: bool
    ) -> GanglionError | None:
        if origin is None and site is None and host in known:
            return None
        hosts, origins, sites = ([] if said is None else [said] for said in (host, origin, site))
        refusal = rules.refusal(hosts, origins, sites, is_public=is_public)
        if refusal is None and host is not None and len(known) < _KNOWN_HOSTS:
            known.add(host)
        return refusal

    return ProxySettings(
        max_body_bytes=server.max_body_bytes,
        max_connections=server.max_connections,
        first_byte_s=settings.first_byte_s,
        idle_s=settings.idle_s,
        sign_of_life_s=server.keep_alive_s,
        stall_s=server.stalled_reader_s,
        guard=guard,
        cors_origins=rules.cors_origins,
        log=settings.request_log,
        is_json_log=settings.is_json_log,
        worker=None if worker is None else worker.place,
        tracing=open_tracing(is_asked=settings.has_tracing),
    )
