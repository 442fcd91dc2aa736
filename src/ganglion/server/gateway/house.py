"""The parts of a gateway's process: the front, the desk and the relay, over one fleet and one set of keys."""

import contextlib
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.routing import BaseRoute

from ganglion.core.errors import GanglionError
from ganglion.gateway.booking import OpenPlaces
from ganglion.gateway.front import Front, FrontSettings
from ganglion.gateway.gatekeeper import KeyGatekeeper
from ganglion.gateway.gateway_metrics import GatewayMetrics
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.tracing import tracing_of
from ganglion.server.bind import InsecureBind, grpc_port_of, is_loopback
from ganglion.server.drain import Gate
from ganglion.server.gateway.assembly import Assembly, assembled, inherit
from ganglion.server.gateway.desk import Page, build_desk
from ganglion.server.gateway.doors import FleetDoors, HealthDoors, nothing_elsewhere
from ganglion.server.gateway.metering import KeyMeter
from ganglion.server.gateway.metrics import FleetMetrics
from ganglion.server.gateway.offer import Offer
from ganglion.server.gateway.settings import GatewaySettings, Reload
from ganglion.server.gateway.socket_folder import socket_folder
from ganglion.server.gateway.unix_socket import served
from ganglion.server.gateway.worker import LEADER, Colleagues, Worker
from ganglion.server.gateway.worker_door import WorkerDoor
from ganglion.server.gateway.worker_pages import merged
from ganglion.server.metrics import Metrics
from ganglion.server.origin import OriginRules
from ganglion.server.reloading import Apply, refuse_to_open
from ganglion.server.settings import ServerSettings
from ganglion.server.state import State
from ganglion.server.storage import opened
from ganglion.store.opening import MEMORY, open_access

if TYPE_CHECKING:
    from ganglion.server.relay.door import RelayDoor

_KNOWN_HOSTS: Final = 256
"""Names by which clients call a gateway: a few, and parsing one costs more than all else about a head."""


@dataclasses.dataclass(frozen=True, slots=True)
class House:
    """What the front, the desk and the relay of one process share."""

    settings: GatewaySettings
    server: ServerSettings
    worker: Worker | None
    gatekeeper: KeyGatekeeper
    state: State
    parts: Assembly
    colleagues: Colleagues | None
    gate: Gate
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    front_metrics: GatewayMetrics = dataclasses.field(default_factory=GatewayMetrics)
    open_places: OpenPlaces = dataclasses.field(default_factory=OpenPlaces)

    @property
    def _is_leading(self) -> bool:
        return self.parts.lead is not None

    async def relay(self) -> "RelayDoor | None":
        """Where sessions pass; None where none are served."""
        if not self.server.has_grpc or not self._is_leading:
            return None
        # Named as text: no fork may hold gRPC, and who serves no sessions spares a fifth of the memory.
        relay: RelayDoor = import_module("ganglion.server.relay.door").RelayDoor(
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
        app = build_desk(
            self.parts.engine,
            self.server,
            self.gate,
            doors=_doors(self.parts, self.server, self.gate, self.colleagues),
            state=dataclasses.replace(self.state, meter=KeyMeter(self.gatekeeper, self.front_metrics)),
            metrics=self.metrics,
            page=_page(own_page, self.colleagues),
            keys=self.gatekeeper.keys,
            places=self.open_places,
        )
        place = _desk_path(stack, self.worker)
        await stack.enter_async_context(served(app, self.server, place))
        return place

    async def _open_worker_door(self, worker: Worker, page: Page, stack: contextlib.AsyncExitStack) -> None:
        parts = self.parts
        door = WorkerDoor(parts.fleet, parts.loader, self.gate, parts.quarantine, poke=parts.poke, page=page)
        if self._is_leading:
            door.spread_poison()
        path = worker.door_path(worker.place)
        await stack.enter_async_context(served(door.app(), self.server, path))
        stack.callback(door.close)

    def read_again(self, reload: Reload) -> Apply:
        """What puts the configuration as it is now into force; raises what is wrong with it."""
        fresh = self.settings.renewed(reload())
        keys = self.gatekeeper.keys
        refuse_to_open(is_keyed=keys.has_static, would_be_keyed=fresh.has_static_keys)

        def apply() -> None:
            self.parts.renew(fresh)
            keys.replace_static(fresh.server.api_keys, fresh.server.admin_keys)

        return apply

    def front(self, desk: Path) -> Front:
        """The public port, before a desk."""
        parts, worker = self.parts, self.worker
        return Front(
            _front_settings(self.settings, self.server, worker),
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


async def built(
    settings: GatewaySettings,
    server: ServerSettings,
    worker: Worker | None,
    stack: contextlib.AsyncExitStack,
) -> House:
    """Open the databases, and put together who is there; raises StartRefused."""
    is_leading = worker is None or worker.is_leader
    leader = None if worker is None or is_leading else worker.door(LEADER)
    parts = assembled(settings, Offer(settings.catalogue), leader)
    gatekeeper = await stack.enter_async_context(_gatekeeper(settings, parts))
    _check_bind(server, is_open=gatekeeper.keys.is_open)
    state = State() if settings.storage is None else await stack.enter_async_context(opened(settings.storage))
    stack.callback(parts.pools.close)
    stack.push_async_callback(parts.loader.close)
    colleagues = None if worker is None else Colleagues(worker, parts.outbound)
    if colleagues is not None and is_leading:
        inherit(parts, await colleagues.legacy())
    return House(settings, server, worker, gatekeeper, state, parts, colleagues, Gate(server.max_in_flight))


async def _relay_secret(state: State) -> bytes:
    return secrets.token_bytes(32) if state.store is None else await state.store.secret("relay")


def _desk_path(stack: contextlib.AsyncExitStack, worker: Worker | None) -> Path:
    """Where only this user gets in."""
    if worker is not None:
        return worker.desk_path(worker.place)
    return stack.enter_context(socket_folder()) / "desk"


def _page(own: Page, colleagues: Colleagues | None) -> Page:
    """What `/metrics` answers: of every worker, where there are several."""
    if colleagues is None:
        return own

    async def every() -> bytes:
        return merged({LEADER: await own(), **await colleagues.pages()})

    return every


@contextlib.asynccontextmanager
async def _gatekeeper(settings: GatewaySettings, parts: Assembly) -> AsyncGenerator[KeyGatekeeper, None]:
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


def _doors(
    parts: Assembly,
    server: ServerSettings,
    gate: Gate,
    colleagues: Colleagues | None,
) -> list[BaseRoute]:
    doors = HealthDoors(parts.fleet, parts.router, gate, parts.offer, time.monotonic()).routes()
    if parts.lead is not None:
        fleet_doors = FleetDoors(
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


def _front_settings(
    settings: GatewaySettings, server: ServerSettings, worker: Worker | None
) -> FrontSettings:
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

    return FrontSettings(
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
        tracing=tracing_of(is_asked=settings.has_tracing),
    )
