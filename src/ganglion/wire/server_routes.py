"""The routes of a node itself, and of a gateway itself: models, health, pages, the fleet."""

from ganglion.wire.discovery import Discovery
from ganglion.wire.fleet import Join, Lease, Leave, NodeState
from ganglion.wire.fleet_overview import (
    Drain,
    FleetActionDone,
    FleetLoadBody,
    FleetOverview,
    GatewayHealth,
    Move,
)
from ganglion.wire.health import Health, ProbeBody, Version
from ganglion.wire.management import (
    LoadBody,
    LoadResult,
    ManagedModel,
    ModelCapabilities,
    ModelEndpoint,
    UnloadBody,
)
from ganglion.wire.messages import MessagesError
from ganglion.wire.messages.anthropic_models import ModelInfo, ModelPage
from ganglion.wire.models import ModelCard, ModelList
from ganglion.wire.openai_errors import ErrorEnvelope
from ganglion.wire.operation import (
    JSON,
    DescribedAnswer,
    Json,
    Operation,
    content,
    get,
    json_answer,
    optional,
    post,
    ref,
    streamed_answer,
    text_answer,
)

_ANTHROPIC_VERSION: Json = optional(
    "anthropic-version",
    "Any value asks for the words of Anthropic's wire.",
    {"type": "string", "enum": ["2023-06-01"]},
    where="header",
)
_MANAGED = DescribedAnswer(
    content("The models.", JSON, {"type": "array", "items": ref("ManagedModel")}).json, (ManagedModel,)
)
_WAIT: Json = optional("wait", "false answers 202 at once.", {"type": "string", "enum": ["true", "false"]})
_SINCE: Json = optional(
    "since",
    "The version that the caller knows: with `wait`, the answer comes when there is another.",
    {"type": "integer", "minimum": 0},
)
_WAIT_S: Json = optional(
    "wait", "How many seconds to wait at most, up to 30.", {"type": "number", "minimum": 0}
)

NODE_OPERATIONS: tuple[Operation, ...] = (
    get(
        "/v1/models",
        "List the models.",
        "The models.",
        ModelList,
        ModelPage,
        parameters=(_ANTHROPIC_VERSION,),
        failures=(ErrorEnvelope, MessagesError),
    ),
    get(
        "/v1/models/{model}",
        "Describe one model.",
        "The model.",
        ModelCard,
        ModelInfo,
        parameters=(_ANTHROPIC_VERSION,),
        failures=(ErrorEnvelope, MessagesError),
    ),
    get("/models", "List the models that are held, loaded or not.", _MANAGED),
    Operation(
        "post",
        "/models/load",
        "Load a model, fetching it when it is not here.",
        {
            "200": streamed_answer(
                "It is loaded; with `accept: text/event-stream`, how it got there.", LoadResult
            ),
            "202": json_answer("It is on its way; `GET /models` says how far.", LoadResult),
        },
        LoadBody,
        (_WAIT,),
    ),
    post(
        "/models/unload",
        "Let a model go, once its requests are finished.",
        "It is gone.",
        LoadResult,
        body=UnloadBody,
    ),
    get("/models/{model}/endpoint", "Say where a loaded model answers.", "The base URL.", ModelEndpoint),
    get("/models/{model}/capabilities", "Say what a model can do.", "Its capabilities.", ModelCapabilities),
    get(
        "/fleet/state",
        "Tell a gateway how the node is, as soon as that changes.",
        "Its state.",
        NodeState,
        parameters=(_SINCE, _WAIT_S),
    ),
    get("/health", "Say how the node is doing.", "Its health.", Health),
    get("/health/live", "Probe whether the process answers.", "It does.", ProbeBody),
    get("/ping", "Another name of `/health/live`, behind a key where there are keys.", "It does.", ProbeBody),
    Operation(
        "get",
        "/health/ready",
        "Probe whether requests should be sent here.",
        {"200": json_answer("They should.", ProbeBody), "503": json_answer("Not now.", ProbeBody)},
        can_fail=False,
    ),
    get("/discovery", "Say what machine and which engines these are.", "The machine.", Discovery),
    get("/version", "Name what is running.", "The versions.", Version),
    get("/metrics", "Prometheus metrics.", text_answer("The metrics.", "text/plain")),
    get("/openapi.json", "This document.", content("The document.", JSON, {"type": "object"})),
    get("/docs", "This document as a page.", text_answer("A page.", "text/html")),
    get("/", "A page to start from.", text_answer("A page.", "text/html")),
)

_OF_NODES_ONLY = frozenset(
    {
        "/health",
        "/discovery",
        "/fleet/state",
        "/models",
        "/models/load",
        "/models/unload",
        "/models/{model}/endpoint",
        "/models/{model}/capabilities",
    }
)

GATEWAY_OPERATIONS: tuple[Operation, ...] = (
    *(operation for operation in NODE_OPERATIONS if operation.path not in _OF_NODES_ONLY),
    get("/fleet", "List the nodes, what each holds and how it is.", "The fleet.", FleetOverview),
    get("/health", "Say how the fleet is doing.", "Its health.", GatewayHealth),
    post("/fleet/join", "Join the fleet as a node, or renew a lease.", "The lease.", Lease, body=Join),
    post("/fleet/leave", "Leave it.", "Left.", FleetActionDone, body=Leave),
    post(
        "/fleet/drain",
        "Give a node no new work, or give it some again.",
        "It is so.",
        FleetActionDone,
        body=Drain,
    ),
    post(
        "/fleet/move",
        "Load a model on a node, then let the others go of it.",
        "It has moved.",
        FleetActionDone,
        body=Move,
    ),
    post(
        "/fleet/load",
        "Have a model of the catalogue loaded where it fits best.",
        "It is loaded.",
        FleetActionDone,
        body=FleetLoadBody,
    ),
)
