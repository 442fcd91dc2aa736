"""The routes of a node: its own, and those of every wire under every name."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from ganglion.core.engine import ModelHolder
from ganglion.core.machine import MachineSource
from ganglion.server.capabilities import EngineCapabilities
from ganglion.server.endpoints.answer import (
    answer_routes,
)
from ganglion.server.endpoints.auxiliary import (
    TokenizerEndpoints,
    embeddings_endpoint,
    rerank_endpoint,
    score_endpoint,
)
from ganglion.server.endpoints.health import FleetStateEndpoint, HealthEndpoints
from ganglion.server.endpoints.info import InfoRoutes
from ganglion.server.endpoints.models import (
    LoadModelEndpoint,
    ModelEndpoints,
    ReadoutEndpoint,
    UnloadModelEndpoint,
)
from ganglion.server.endpoints.ollama import ollama_routes
from ganglion.server.fleet_membership import FleetMembership
from ganglion.server.gate import Gate
from ganglion.server.middleware.auth import AdminOnly
from ganglion.server.prometheus import CONTENT_TYPE, Metrics
from ganglion.server.responses.background import BackgroundRuns
from ganglion.server.responses.endpoint import CompactionEndpoints, ResponsesEndpoint
from ganglion.server.responses.responses_service import ResponsesService
from ganglion.server.responses.stored_state import ConversationEndpoints, StoredResponseEndpoints
from ganglion.server.responses.websocket import ResponsesWebSocket
from ganglion.server.settings import ServerSettings
from ganglion.server.state import AppState
from ganglion.wire.route_aliases import aliases_of


def _responses_routes(
    capabilities: EngineCapabilities, settings: ServerSettings, gate: Gate, state: AppState
) -> list[BaseRoute]:
    """The routes of the Responses wire, over one service and one set of background runs."""
    engine = capabilities.engine
    service = ResponsesService(state, engine.models, is_strict=settings.is_strict)
    runs = BackgroundRuns(engine, service, state, settings)
    stored = StoredResponseEndpoints(state.store, runs, settings)
    conversations = ConversationEndpoints(state.store, settings)
    prompts = CompactionEndpoints(capabilities, settings, gate, service, state)
    return [
        Route("/v1/responses", ResponsesEndpoint(engine, settings, gate, service, runs), methods=["POST"]),
        WebSocketRoute("/v1/responses", ResponsesWebSocket(engine, settings, gate, service)),
        Route("/v1/responses/input_tokens", prompts.input_tokens, methods=["POST"]),
        Route("/v1/responses/compact", prompts.compact, methods=["POST"]),
        Route("/v1/responses/{id}", stored, methods=["GET"]),
        Route("/v1/responses/{id}", stored.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", stored.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", stored.input_items, methods=["GET"]),
        Route("/v1/conversations", conversations.create, methods=["POST"]),
        Route("/v1/conversations/{id}", conversations.get, methods=["GET"]),
        Route("/v1/conversations/{id}", conversations.update, methods=["POST"]),
        Route("/v1/conversations/{id}", conversations.delete, methods=["DELETE"]),
        Route("/v1/conversations/{id}/items", conversations.items, methods=["GET"]),
        Route("/v1/conversations/{id}/items", conversations.add, methods=["POST"]),
        Route("/v1/conversations/{id}/items/{item}", conversations.item, methods=["GET"]),
        Route("/v1/conversations/{id}/items/{item}", conversations.delete_item, methods=["DELETE"]),
    ]


def build_routes(
    capabilities: EngineCapabilities,
    settings: ServerSettings,
    gate: Gate,
    metrics: Metrics,
    holder: ModelHolder | None = None,
    *,
    machine: MachineSource | None = None,
    state: AppState | None = None,
    membership: FleetMembership | None = None,
) -> list[BaseRoute]:
    """Every route of a node; the holder's models come and go."""
    engine = capabilities.engine
    info = InfoRoutes(engine, settings, gate)
    models = ModelEndpoints(engine, settings)
    health = HealthEndpoints(engine, gate, settings, holder, machine)
    fleet_state = FleetStateEndpoint(engine, gate, membership or FleetMembership(), machine)

    async def page(_: Request) -> Response:
        return Response(await metrics.page(engine.models()), headers={"content-type": CONTENT_TYPE})

    return [
        *info.routes(),
        Route("/health", health.health),
        Route("/health/ready", info.ready),
        Route("/discovery", health.discovery),
        Route("/metrics", page),
        Route("/fleet/state", fleet_state, methods=["GET"]),
        Route("/models", models.every),
        Route(
            "/models/load", AdminOnly(LoadModelEndpoint(holder, settings), "load models"), methods=["POST"]
        ),
        Route(
            "/models/unload",
            AdminOnly(UnloadModelEndpoint(holder, settings), "unload models"),
            methods=["POST"],
        ),
        Route("/models/{model:path}/endpoint", models.endpoint),
        Route("/models/{model:path}/capabilities", models.capabilities),
        *wire_routes(capabilities, settings, gate, holder, state),
    ]


def _with_aliases(routes: list[BaseRoute]) -> list[BaseRoute]:
    """The routes, and each again under its aliases."""
    others: list[BaseRoute] = []
    for route in routes:
        if isinstance(route, Route):
            methods = list(route.methods or ())
            others += [Route(alias, route.endpoint, methods=methods) for alias in aliases_of(route.path)]
        elif isinstance(route, WebSocketRoute):
            others += [WebSocketRoute(alias, route.endpoint) for alias in aliases_of(route.path)]
    return [*routes, *others]


def wire_routes(
    capabilities: EngineCapabilities,
    settings: ServerSettings,
    gate: Gate,
    holder: ModelHolder | None = None,
    state: AppState | None = None,
) -> list[BaseRoute]:
    """The routes of every wire, under every name."""
    engine = capabilities.engine
    state = state or AppState()
    prompts = TokenizerEndpoints(capabilities, settings, gate, state.seal)
    routes: list[BaseRoute] = [
        *answer_routes(capabilities, settings, gate, holder, state.seal),
        Route("/v1/chat/completions/input_tokens", prompts.count_chat, methods=["POST"]),
        *_responses_routes(capabilities, settings, gate, state),
        Route("/v1/messages/count_tokens", prompts.count_messages, methods=["POST"]),
        *ollama_routes(capabilities, settings, gate, holder),
        Route("/v1/embeddings", embeddings_endpoint(capabilities.embedder, settings, gate), methods=["POST"]),
        Route("/v1/rerank", rerank_endpoint(capabilities.embedder, settings, gate), methods=["POST"]),
        Route("/v1/score", score_endpoint(engine, settings, gate), methods=["POST"]),
        Route("/v1/readout/manifest", ReadoutEndpoint(engine).manifest),
        Route("/tokenize", prompts.tokenize, methods=["POST"]),
        Route("/detokenize", prompts.detokenize, methods=["POST"]),
        Route("/apply_template", prompts.apply_template, methods=["POST"]),
        Route("/tokenizer_info", prompts.info),
    ]
    return _with_aliases(routes)
