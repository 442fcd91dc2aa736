"""Every route of a node, those of the wires apart, and the small ones' handlers."""

import platform
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from ganglion.core.engine import Engine, ModelHolder
from ganglion.core.errors import ModelNotFound
from ganglion.core.machine import MachineSource
from ganglion.server.chat import ChatDoor
from ganglion.server.completions import CompletionsDoor
from ganglion.server.drain import Gate
from ganglion.server.embeddings import embeddings_door, rerank_door
from ganglion.server.fleet_state import StateDoor
from ganglion.server.http import json_response
from ganglion.server.machine import MachineDoor
from ganglion.server.management import LoadDoor, ModelViews, UnloadDoor
from ganglion.server.messages import CountTokensDoor, MessagesDoor
from ganglion.server.metrics import CONTENT_TYPE, Metrics
from ganglion.server.ollama import ollama_routes
from ganglion.server.pages import docs_page, start_page
from ganglion.server.ports import Ports
from ganglion.server.readout import ReadoutDoor
from ganglion.server.responses.routes import responses_routes
from ganglion.server.rights import AdminOnly
from ganglion.server.scope import is_anthropic, visible
from ganglion.server.score import score_door
from ganglion.server.settings import ServerSettings
from ganglion.server.standing import Standing
from ganglion.server.state import State
from ganglion.server.tokenizer import TokenizerDoors
from ganglion.wire import health, models, openapi
from ganglion.wire.aliases import aliases_of
from ganglion.wire.messages import models as anthropic_models


def build_routes(
    ports: Ports,
    settings: ServerSettings,
    gate: Gate,
    metrics: Metrics,
    holder: ModelHolder | None = None,
    *,
    machine: MachineSource | None = None,
    state: State | None = None,
    standing: Standing | None = None,
) -> list[BaseRoute]:
    """The table that the router and the access test read; the holder's models come and go."""
    engine = ports.engine
    views = Views(engine, settings, gate)
    models = ModelViews(engine, settings)
    node = MachineDoor(engine, gate, settings, holder, machine)
    fleet_state = StateDoor(engine, gate, standing or Standing(), machine)

    async def page(_: Request) -> Response:
        return Response(await metrics.page(engine.models()), headers={"content-type": CONTENT_TYPE})

    return [
        *views.routes(),
        Route("/health", node.health),
        Route("/health/ready", views.ready),
        Route("/discovery", node.discovery),
        Route("/metrics", page),
        Route("/fleet/state", fleet_state, methods=["GET"]),
        Route("/models", models.every),
        Route("/models/load", AdminOnly(LoadDoor(holder, settings), "load models"), methods=["POST"]),
        Route("/models/unload", AdminOnly(UnloadDoor(holder, settings), "unload models"), methods=["POST"]),
        Route("/models/{model:path}/endpoint", models.endpoint),
        Route("/models/{model:path}/capabilities", models.capabilities),
        *wire_routes(ports, settings, gate, holder, state),
    ]


def aliased(routes: list[BaseRoute]) -> list[BaseRoute]:
    """The routes, and each again under its other names."""
    others: list[BaseRoute] = []
    for route in routes:
        if isinstance(route, Route):
            methods = list(route.methods or ())
            others += [Route(alias, route.endpoint, methods=methods) for alias in aliases_of(route.path)]
        elif isinstance(route, WebSocketRoute):
            others += [WebSocketRoute(alias, route.endpoint) for alias in aliases_of(route.path)]
    return [*routes, *others]


def wire_routes(
    ports: Ports,
    settings: ServerSettings,
    gate: Gate,
    holder: ModelHolder | None = None,
    state: State | None = None,
) -> list[BaseRoute]:
    """What any engine can be asked, in every wire and under every name."""
    engine = ports.engine
    state = state or State()
    prompts = TokenizerDoors(ports, settings, gate)
    routes: list[BaseRoute] = [
        Route("/v1/chat/completions", ChatDoor(engine, settings, gate), methods=["POST"]),
        Route("/v1/chat/completions/input_tokens", prompts.count_chat, methods=["POST"]),
        *responses_routes(ports, settings, gate, state),
        Route("/v1/messages", MessagesDoor(ports, settings, gate, state.seal), methods=["POST"]),
        Route(
            "/v1/messages/count_tokens",
            CountTokensDoor(ports, settings, gate, state.seal),
            methods=["POST"],
        ),
        *ollama_routes(ports, settings, gate, holder),
        Route("/v1/completions", CompletionsDoor(engine, settings, gate), methods=["POST"]),
        Route("/v1/embeddings", embeddings_door(ports.embedder, settings, gate), methods=["POST"]),
        Route("/v1/rerank", rerank_door(ports.embedder, settings, gate), methods=["POST"]),
        Route("/v1/score", score_door(engine, settings, gate), methods=["POST"]),
        Route("/v1/readout/manifest", ReadoutDoor(engine).manifest),
        Route("/tokenize", prompts.tokenize, methods=["POST"]),
        Route("/detokenize", prompts.detokenize, methods=["POST"]),
        Route("/apply_template", prompts.apply_template, methods=["POST"]),
        Route("/tokenizer_info", prompts.info),
    ]
    return aliased(routes)


class Views:
    """What answers from memory alone."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        gate: Gate,
        surface: openapi.Surface = openapi.NODE,
        needs_key: Callable[[], bool] | None = None,
    ) -> None:
        """`needs_key` where others than the settings' keys are known."""
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
        """Those that nodes and gateways have alike."""
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
        scheme = "https" if self._settings.tls_cert else "http"
        url = f"{scheme}://{self._settings.host}:{self._settings.port}"
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
        return Response(health.probe(status), 503, {"retry-after": "2"}, "application/json")

    async def version(self, _: Request) -> Response:
        return json_response(self._version)

    async def models(self, request: Request) -> Response:
        wire = anthropic_models if is_anthropic(request.scope) else models
        return json_response(wire.every(visible(request.scope, self._engine.models())))

    async def model(self, request: Request) -> Response:
        name: str = request.path_params["model"]
        for model in visible(request.scope, self._engine.models()):
            if name == model.id or name in model.aliases:
                return json_response((anthropic_models if is_anthropic(request.scope) else models).one(model))
        raise ModelNotFound(name[:200])
