"""A node as an ASGI app: its routes behind the middleware, its engine behind deadlines and metrics."""

from collections.abc import Callable, Sequence
from functools import partial

from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp, Scope

from ganglion.core.engine import Engine, ModelHolder
from ganglion.core.machine import MachineSource
from ganglion.server.bind import is_loopback
from ganglion.server.capabilities import capabilities_of
from ganglion.server.fleet_membership import AffinityRecordingEngine, FleetMembership
from ganglion.server.gate import Gate
from ganglion.server.images.fetching_reader import with_images_fetched
from ganglion.server.images.image_engine import ImageEngine
from ganglion.server.images.image_fetcher import ImageFetcher
from ganglion.server.images.outbound import Outbound, outbound_of
from ganglion.server.middleware.auth import Auth, identity_by_key
from ganglion.server.middleware.body_limits import BodyMemoryLimit
from ganglion.server.middleware.model_lookup import DefaultModel
from ganglion.server.middleware.origin import OriginGuard
from ganglion.server.middleware.principal import KeyRing, key_ring, presented_key
from ganglion.server.middleware.request_log import RequestLog
from ganglion.server.middleware.scope import header
from ganglion.server.observed import ObservedEngine
from ganglion.server.prometheus import Metrics
from ganglion.server.routes import build_routes
from ganglion.server.settings import ServerSettings
from ganglion.server.state import AppState


def with_middleware(
    routes: Sequence[BaseRoute],
    gate: Gate,
    *,
    identity: Callable[[ASGIApp], ASGIApp],
    max_body_bytes: int,
    may_set_request_id: Callable[[Scope], bool] = lambda scope: True,
    is_logged: bool = True,
) -> ASGIApp:
    """The routes as an app. From the outside: each request gets an id and is logged, errors become responses
    in its wire's format, `identity` says whose it is, and its body is read once there is room.

    `may_set_request_id` says whose own request id is used. What somebody before the app logs is not logged.
    """
    router = BodyMemoryLimit(Router(list(routes), redirect_slashes=False), max_body_bytes)
    return RequestLog(identity(router), gate, may_set_request_id, is_logged=is_logged)


def build_node(
    engine: Engine,
    settings: ServerSettings,
    gate: Gate | None = None,
    keys: KeyRing | None = None,
    *,
    machine: MachineSource | None = None,
    state: AppState | None = None,
    metrics: Metrics | None = None,
    membership: FleetMembership | None = None,
    outbound: Outbound | None = None,
) -> ASGIApp:
    """The ASGI app of a node, in front of an engine under deadlines and metrics.

    `outbound` fetches images; left out, as the settings say.
    """
    gate = gate or Gate(settings.max_in_flight)
    metrics = metrics or Metrics()
    ring = keys or key_ring(settings)
    membership = membership or FleetMembership()
    fetcher = ImageFetcher(outbound or outbound_of(settings.images))
    pictured = ImageEngine(engine, fetcher)
    measured = AffinityRecordingEngine(
        ObservedEngine(pictured, metrics, settings.deadlines), membership.conversations
    )
    holder = engine if isinstance(engine, ModelHolder) else None
    routes = build_routes(
        with_images_fetched(capabilities_of(engine, measured), fetcher),
        settings,
        gate,
        metrics,
        holder,
        machine=machine,
        state=state,
        membership=membership,
    )

    def identity(router: ASGIApp) -> ASGIApp:
        return OriginGuard(
            Auth(DefaultModel(router, measured.models), identity_by_key(ring, membership.leases)),
            is_loopback_bind=is_loopback(settings.host),
            allowed_hosts=settings.allowed_hosts,
            cors_origins=settings.cors_origins,
        )

    return with_middleware(
        routes,
        gate,
        identity=identity,
        max_body_bytes=settings.max_body_bytes,
        may_set_request_id=lambda scope: ring.may_set_request_id(presented_key(partial(header, scope))),
    )
