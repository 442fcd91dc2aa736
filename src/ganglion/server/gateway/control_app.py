"""The gateway's control app: admin routes, stored state and translated dialects, behind the proxy."""

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from ganglion.core.engine import Engine
from ganglion.gateway.access.admission import OpenAdmissions
from ganglion.gateway.access.keys import ApiKeys
from ganglion.server.app import with_middleware
from ganglion.server.capabilities import capabilities_of
from ganglion.server.endpoints.info import InfoRoutes
from ganglion.server.gate import Gate
from ganglion.server.gateway.key_meter import AdmissionMiddleware
from ganglion.server.images.image_engine import ImageEngine
from ganglion.server.middleware.auth import trusted_auth
from ganglion.server.middleware.model_lookup import DefaultModel
from ganglion.server.observed import ObservedEngine
from ganglion.server.prometheus import CONTENT_TYPE, Metrics
from ganglion.server.routes import wire_routes
from ganglion.server.settings import ServerSettings
from ganglion.server.state import AppState
from ganglion.wire import openapi

_MetricsPage = Callable[[], Awaitable[bytes]]
"""Writes the body of `/metrics`."""


def build_control_app(
    engine: Engine,
    settings: ServerSettings,
    gate: Gate,
    *,
    fleet_routes: Sequence[BaseRoute],
    state: AppState,
    metrics: Metrics,
    page: _MetricsPage,
    keys: ApiKeys,
    admissions: OpenAdmissions,
) -> ASGIApp:
    """The ASGI app that answers what the proxy does not pass on to a node.

    `admissions` are what the proxy reserved for the requests that it hands over.
    """
    capabilities = capabilities_of(engine, ObservedEngine(ImageEngine(engine), metrics, settings.deadlines))

    async def metrics_page(_: Request) -> Response:
        return Response(await page(), headers={"content-type": CONTENT_TYPE})

    routes = [
        *InfoRoutes(engine, settings, gate, openapi.GATEWAY, lambda: not keys.is_open).routes(),
        *fleet_routes,
        Route("/metrics", metrics_page),
        *wire_routes(capabilities, settings, gate, None, state),
    ]
    # The proxy logs each request, with its tenant and the node that answered.
    app = with_middleware(
        routes,
        gate,
        identity=lambda app: trusted_auth(DefaultModel(app, engine.models), keys.models_of, keys.identity),
        max_body_bytes=settings.max_body_bytes,
        is_logged=False,
    )
    return AdmissionMiddleware(app, admissions)
