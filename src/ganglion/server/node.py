"""The whole node as an app: routes, wrapped in what every request passes."""

from starlette.types import ASGIApp

from ganglion.core.engine import Engine, ModelHolder
from ganglion.core.machine import MachineSource
from ganglion.server.auth import Auth, presented_key
from ganglion.server.bind import is_loopback
from ganglion.server.deadlines import Deadlined
from ganglion.server.digest import Remembering
from ganglion.server.drain import Gate
from ganglion.server.keys import KeyRing, key_ring
from ganglion.server.metrics import Metrics
from ganglion.server.naming import FillsModelIn
from ganglion.server.observe import Observed
from ganglion.server.origin import OriginGuard
from ganglion.server.ports import ports_of
from ganglion.server.routes import build_routes
from ganglion.server.settings import ServerSettings
from ganglion.server.standing import Standing
from ganglion.server.state import State
from ganglion.server.wrapped import wrapped


def build_node(
    engine: Engine,
    settings: ServerSettings,
    gate: Gate | None = None,
    keys: KeyRing | None = None,
    *,
    machine: MachineSource | None = None,
    state: State | None = None,
    metrics: Metrics | None = None,
    standing: Standing | None = None,
) -> ASGIApp:
    """The ASGI app in front of an engine, which it gives deadlines and measures."""
    gate = gate or Gate(settings.max_in_flight)
    metrics = metrics or Metrics()
    ring = keys or key_ring(settings)
    standing = standing or Standing()
    measured = Remembering(Observed(Deadlined(engine, settings.deadlines), metrics), standing.digest)
    holder = engine if isinstance(engine, ModelHolder) else None
    routes = build_routes(
        ports_of(engine, measured),
        settings,
        gate,
        metrics,
        holder,
        machine=machine,
        state=state,
        standing=standing,
    )

    def identity(router: ASGIApp) -> ASGIApp:
        return OriginGuard(
            Auth(FillsModelIn(router, measured.models), ring, standing.leases),
            is_loopback_bind=is_loopback(settings.host),
            allowed_hosts=settings.allowed_hosts,
            cors_origins=settings.cors_origins,
        )

    return wrapped(
        routes,
        gate,
        identity=identity,
        max_body_bytes=settings.max_body_bytes,
        may_name=lambda scope: ring.may_name(presented_key(scope)),
    )
