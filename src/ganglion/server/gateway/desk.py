"""The gateway's desk: admin routes, stored state and translated wires, behind the front's own socket."""

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from ganglion.core.engine import Engine
from ganglion.gateway.booking import OpenPlaces
from ganglion.gateway.keys import Keys
from ganglion.server.auth import TrustedIdentity
from ganglion.server.deadlines import Deadlined
from ganglion.server.drain import Gate
from ganglion.server.gateway.metering import AtItsPlace
from ganglion.server.metrics import CONTENT_TYPE, Metrics
from ganglion.server.naming import FillsModelIn
from ganglion.server.observe import Observed
from ganglion.server.ports import ports_of
from ganglion.server.routes import Views, wire_routes
from ganglion.server.settings import ServerSettings
from ganglion.server.state import State
from ganglion.server.wrapped import wrapped
from ganglion.wire import openapi

Page = Callable[[], Awaitable[bytes]]
"""Writes what `/metrics` answers."""


def build_desk(
    engine: Engine,
    settings: ServerSettings,
    gate: Gate,
    *,
    doors: Sequence[BaseRoute],
    state: State,
    metrics: Metrics,
    page: Page,
    keys: Keys,
    places: OpenPlaces,
) -> ASGIApp:
    """The ASGI app to which the front hands what it does not proxy to a node.

    `doors` tell of the fleet, `places` are what the front reserved for what it hands over.
    """
    ports = ports_of(engine, Observed(Deadlined(engine, settings.deadlines), metrics))

    async def told(_: Request) -> Response:
        return Response(await page(), headers={"content-type": CONTENT_TYPE})

    routes = [
        *Views(engine, settings, gate, openapi.GATEWAY, lambda: not keys.is_open).routes(),
        *doors,
        Route("/metrics", told),
        *wire_routes(ports, settings, gate, None, state),
    ]
    # The front logs each request, with who asked and which node answered.
    app = wrapped(
        routes,
        gate,
        identity=lambda app: TrustedIdentity(FillsModelIn(app, engine.models), keys.models_of, keys.identity),
        max_body_bytes=settings.max_body_bytes,
        is_logged=False,
    )
    return AtItsPlace(app, places)
