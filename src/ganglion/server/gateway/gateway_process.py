"""Wires a gateway together: the proxy, the control app and the relay, over one fleet and one set of keys."""

import contextlib
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs
from starlette.routing import BaseRoute

from ganglion.core.errors import GanglionError
from ganglion.gateway.access.admission import OpenAdmissions
from ganglion.gateway.access.gatekeeper import KeyGatekeeper
from ganglion.gateway.engine import FleetEngine
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.health import FleetHealthCheck
from ganglion.gateway.fleet.membership import NodeLeases, first_epoch
from ganglion.gateway.fleet.node_queue import NodeQueue
from ganglion.gateway.fleet.probe import PollSettings
from ganglion.gateway.fleet.quarantine import Quarantine
from ganglion.gateway.metrics import FleetMetrics, GatewayMetrics
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.placing.catalogue_view import CatalogueView
from ganglion.gateway.placing.loader import FleetLoader
from ganglion.gateway.placing.scaler import Scaler
from ganglion.gateway.proxy.listener import ProxyListener, ProxySettings
from ganglion.gateway.proxy.tracing import open_tracing
from ganglion.gateway.remote import RemoteDeadlines
from ganglion.gateway.routing.router import Router
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.server.bind import InsecureBind, grpc_port_of, is_loopback
from ganglion.server.gate import Gate
from ganglion.server.gateway.control_app import build_control_app
from ganglion.server.gateway.fleet_endpoints import FleetEndpoints, GatewayHealthEndpoints
from ganglion.server.gateway.key_meter import KeyMeter
from ganglion.server.gateway.setup import GatewaySetup, Reload
from ganglion.server.gateway.unix_socket import serve_on_unix_socket, socket_folder
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
class FleetParts:
    """Everything about the fleet that a gateway keeps while it runs."""

    fleet: Fleet
    pools: ConnectionPools
    node_client: NodeClient
    router: Router
    engine: FleetEngine
    loader: FleetLoader
    quarantine: Quarantine
    catalogue_view: CatalogueView
    health: FleetHealthCheck
    membership: NodeLeases
    scaler: Scaler

    def background_tasks(self) -> tuple[Coroutine[None, None, None], ...]:
        """The tasks to run for as long as the gateway does."""
        return self.health.run(), self.membership.keep_expiring(), self.scaler.run()

    def reconfigure(self, settings: GatewaySetup) -> None:
        """Use other declared nodes and another catalogue from now on; what runs goes on."""
        self.router.replace(settings.catalogue)
        self.catalogue_view.replace(settings.catalogue)
        self.loader.catalogue = self.scaler.catalogue = settings.catalogue
        self.membership.declare(settings.nodes)


def build_fleet_parts(settings: GatewaySetup, catalogue_view: CatalogueView) -> FleetParts:
    """The parts over the declared nodes; nothing runs yet."""
    queue = NodeQueue(max_requests=settings.gateway.queue_requests, max_wait_s=settings.gateway.queue_s)
    fleet = Fleet(settings.nodes, queue=queue)
    pools, quarantine = ConnectionPools(settings.gateway.connect_s), Quarantine()
    node_client = NodeClient(pools)
    router = Router(fleet, settings.catalogue)
    polls = PollSettings(
        every_s=settings.gateway.poll_s, wait_s=min(settings.gateway.poll_s, PollSettings().wait_s)
    )
    health = FleetHealthCheck(fleet, node_client, polls)
    loader = FleetLoader(fleet, settings.catalogue, node_client, probe_now=health.probe_now)
    membership = NodeLeases(
        fleet,
        first_epoch=first_epoch(time.time()),
        lease_s=settings.gateway.lease_s,
        node_key=settings.gateway.node_key,
    )
    engine = FleetEngine(
        fleet,
        router,
        node_client,
        loader,
        catalogue=lambda: catalogue_view.listed,
        listed_as=router.listed_as,
        probe_now=health.probe_now,
        deadlines=RemoteDeadlines(head_s=settings.gateway.first_byte_s, idle_s=settings.gateway.idle_s),
        quarantine=quarantine,
    )
    return FleetParts(
        fleet,
        pools,
        node_client,
        router,
        engine,
        loader,
        quarantine,
        catalogue_view,
        health,
        membership,
        Scaler(fleet, settings.catalogue, loader),
    )


_KNOWN_HOSTS: Final = 256
"""Values of the Host header that are remembered: there are few, and parsing one costs more than the rest of a
head."""


@dataclasses.dataclass(frozen=True, slots=True)
class GatewayProcess:
    """The parts of a gateway that is being started; makes its proxy, control app and relay."""

    settings: GatewaySetup
    server: ServerSettings
    gatekeeper: KeyGatekeeper
    state: AppState
    parts: FleetParts
    gate: Gate
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    proxy_metrics: GatewayMetrics = dataclasses.field(default_factory=GatewayMetrics)
    open_admissions: OpenAdmissions = dataclasses.field(default_factory=OpenAdmissions)

    async def relay(self) -> "RelayEndpoint | None":
        """The gRPC endpoint for token sessions; None where gRPC is switched off."""
        if not self.server.has_grpc:
            return None
        # Named as text, so that a gateway without sessions never imports gRPC: a fifth of its memory.
        relay: RelayEndpoint = import_module("ganglion.server.gateway.relay.relay_endpoint").RelayEndpoint(
            structs.replace(self.server, grpc_port=grpc_port_of(self.settings.server, self.server.port)),
            fleet=self.parts.fleet,
            chooser=self.parts.router,
            gatekeeper=self.gatekeeper,
            loader=self.parts.loader,
            secret=await _relay_secret(self.state),
            metrics=self.metrics,
            probe_now=self.parts.health.probe_now,
        )
        return relay

    async def open_control_app(self, stack: contextlib.AsyncExitStack) -> Path:
        """Serve the control app on a Unix socket that only this user reaches, and return its path."""
        fleet_metrics = FleetMetrics(self.proxy_metrics, self.parts.fleet, self.gatekeeper.usage_counts)

        async def page() -> bytes:
            return await fleet_metrics.page() + await self.metrics.page(())

        app = build_control_app(
            self.parts.engine,
            self.server,
            self.gate,
            fleet_routes=_fleet_routes(self.parts, self.server, self.gate),
            state=dataclasses.replace(self.state, meter=KeyMeter(self.gatekeeper, self.proxy_metrics)),
            metrics=self.metrics,
            page=page,
            keys=self.gatekeeper.keys,
            admissions=self.open_admissions,
        )
        path = stack.enter_context(socket_folder()) / "desk"
        await stack.enter_async_context(serve_on_unix_socket(app, self.server, path))
        return path

    def read_config(self, reload: Reload) -> ApplyConfig:
        """Read the configuration, and return what applies it; raises what is wrong with it."""
        fresh = self.settings.renewed(reload())
        keys = self.gatekeeper.keys
        check_keys_remain(is_keyed=keys.has_static, would_be_keyed=fresh.has_static_keys)

        def apply() -> None:
            self.parts.reconfigure(fresh)
            keys.replace_static(fresh.server.api_keys, fresh.server.admin_keys)

        return apply

    def proxy(self, control_app: Path) -> ProxyListener:
        """The proxy on the public port, in front of the control app at that path."""
        parts = self.parts
        return ProxyListener(
            _proxy_settings(self.settings, self.server),
            fleet=parts.fleet,
            chooser=parts.router,
            gatekeeper=self.gatekeeper,
            loader=parts.loader,
            pools=parts.pools,
            control_app=NodeSpec("desk", f"unix://{control_app}"),
            metrics=self.proxy_metrics,
            probe_now=parts.health.probe_now,
            quarantine=parts.quarantine,
            open_admissions=self.open_admissions,
        )


async def build_gateway(
    settings: GatewaySetup,
    server: ServerSettings,
    stack: contextlib.AsyncExitStack,
) -> GatewayProcess:
    """Open the databases, and build the parts of a gateway; raises StartRefused."""
    parts = build_fleet_parts(settings, CatalogueView(settings.catalogue))
    gatekeeper = await stack.enter_async_context(_gatekeeper(settings, parts))
    _check_bind(server, is_open=gatekeeper.keys.is_open)
    state = (
        AppState()
        if settings.storage is None
        else await stack.enter_async_context(open_store(settings.storage))
    )
    stack.callback(parts.pools.close)
    stack.push_async_callback(parts.loader.close)
    return GatewayProcess(settings, server, gatekeeper, state, parts, Gate(server.max_in_flight))


async def _relay_secret(state: AppState) -> bytes:
    return secrets.token_bytes(32) if state.store is None else await state.store.secret("relay")


@contextlib.asynccontextmanager
async def _gatekeeper(settings: GatewaySetup, parts: FleetParts) -> AsyncGenerator[KeyGatekeeper, None]:
    access = await open_access(MEMORY if settings.storage is None else settings.storage.place)
    try:
        catalogue_view, router, server = parts.catalogue_view, parts.router, settings.server
        gatekeeper = KeyGatekeeper(
            access,
            server.api_keys,
            catalogue_view.price,
            dearest=lambda name: catalogue_view.dearest(router.may_answer(name)),
            booked_as=router.booked_as,
            open_answer_tokens=settings.gateway.open_answer_tokens,
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


def _fleet_routes(parts: FleetParts, server: ServerSettings, gate: Gate) -> list[BaseRoute]:
    routes = GatewayHealthEndpoints(
        parts.fleet, parts.router, gate, parts.catalogue_view, time.monotonic()
    ).routes()
    fleet = FleetEndpoints(
        fleet=parts.fleet,
        chooser=parts.router,
        membership=parts.membership,
        loader=parts.loader,
        probe_now=parts.health.probe_now,
        settings=server,
        catalogue_view=parts.catalogue_view,
    )
    return routes + fleet.routes()


def _proxy_settings(settings: GatewaySetup, server: ServerSettings) -> ProxySettings:
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
        first_byte_s=settings.gateway.first_byte_s,
        idle_s=settings.gateway.idle_s,
        keep_alive_event_s=server.keep_alive_s,
        stall_s=server.stalled_reader_s,
        guard=guard,
        cors_origins=rules.cors_origins,
        log=settings.request_log,
        is_json_log=settings.is_json_log,
        tracing=open_tracing(is_asked=settings.gateway.has_tracing),
    )
