"""The endpoints that describe the server itself: pages, OpenAPI, probes, version, and the list of models."""

import platform
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ganglion.core.engine import Engine, find_model
from ganglion.core.errors import ModelNotFound
from ganglion.server.endpoints.http import json_response
from ganglion.server.endpoints.pages import docs_page, start_page
from ganglion.server.gate import Gate
from ganglion.server.middleware.scope import is_anthropic, principal
from ganglion.server.settings import ServerSettings
from ganglion.wire import health, models, openapi
from ganglion.wire.headers import RETRY_AFTER
from ganglion.wire.messages import anthropic_models


class InfoRoutes:
    """Answers from memory alone, on nodes and gateways alike."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        gate: Gate,
        surface: openapi.Surface = openapi.NODE,
        needs_key: Callable[[], bool] | None = None,
    ) -> None:
        """`needs_key` is for a server that knows other keys than those in its settings."""
        self._engine = engine
        self._settings = settings
        self._gate = gate
        self._needs_key = needs_key or (lambda: settings.has_keys)
        self._greeting = surface.greeting
        document = openapi.document(settings.build.version, surface)
        self._openapi = openapi.encode(document)
        self._docs = docs_page(document, surface.operations)
        build = settings.build
        python = platform.python_version()
        self._version = health.version(
            health.Version(build.version, build.git_sha, python, dict(build.libraries))
        )

    def routes(self) -> list[BaseRoute]:
        """The routes that nodes and gateways share."""
        return [
            Route("/", self.start),
            Route("/docs", self.docs),
            Route("/openapi.json", self.openapi),
            Route("/health/live", self.live),
            Route("/ping", self.live),
            Route("/version", self.version),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
        ]

    async def start(self, _: Request) -> Response:
        url = f"{self._settings.scheme}://{self._settings.host}:{self._settings.port}"
        return start_page(self._greeting, self._engine.models(), url, needs_key=self._needs_key())

    async def docs(self, _: Request) -> Response:
        return self._docs

    async def openapi(self, _: Request) -> Response:
        return json_response(self._openapi)

    async def live(self, _: Request) -> Response:
        return json_response(health.probe("ok"))

    async def ready(self, _: Request) -> Response:
        status = health.node_status(self._engine.models(), is_draining=self._gate.is_draining)
        if status in ("ok", "degraded"):
            return json_response(health.probe(status))
        return Response(health.probe(status), 503, {RETRY_AFTER: "2"}, "application/json")

    async def version(self, _: Request) -> Response:
        return json_response(self._version)

    async def models(self, request: Request) -> Response:
        wire = anthropic_models if is_anthropic(request.scope) else models
        return json_response(wire.every(principal(request.scope).visible(self._engine.models())))

    async def model(self, request: Request) -> Response:
        name: str = request.path_params["model"]
        model = find_model(principal(request.scope).visible(self._engine.models()), name)
        if model is None:
            raise ModelNotFound(name[:200])
        return json_response((anthropic_models if is_anthropic(request.scope) else models).one(model))
