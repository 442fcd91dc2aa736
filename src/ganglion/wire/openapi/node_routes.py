"""The routes of a node itself: its models, its health, its pages."""

from ganglion.wire.discovery import Discovery
from ganglion.wire.fleet import NodeState
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
    Json,
    Operation,
    Shapes,
    content,
    either,
    json_answer,
    optional,
    ref,
    text_answer,
)

_ANTHROPIC_VERSION: Json = optional(
    "anthropic-version",
    "Any value asks for the words of Anthropic's wire.",
    {"type": "string", "enum": ["2023-06-01"]},
    where="header",
)
_MODEL: Json = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "A model id; ids may hold slashes, which callers percent-encode or not.",
    "schema": {"type": "string"},
}
_LOAD_ANSWER: Json = {
    "description": "It is loaded; with `accept: text/event-stream`, how it got there.",
    "content": {JSON: {"schema": ref("LoadResult")}, "text/event-stream": {}},
}
_WAIT: Json = optional("wait", "false answers 202 at once.", {"type": "string", "enum": ["true", "false"]})
_SINCE: Json = optional(
    "since",
    "The version that the caller knows: with `wait`, the answer comes when there is another.",
    {"type": "integer", "minimum": 0},
)
_WAIT_S: Json = optional(
    "wait", "How many seconds to wait at most, up to 30.", {"type": "number", "minimum": 0}
)

SHAPES: Shapes = (
    ModelCard,
    ModelList,
    ModelInfo,
    ModelPage,
    Discovery,
    Health,
    ProbeBody,
    Version,
    ManagedModel,
    LoadBody,
    LoadResult,
    UnloadBody,
    ModelEndpoint,
    ModelCapabilities,
    NodeState,
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "get",
        "/v1/models",
        "List the models.",
        {"200": either("The models.", ModelList, ModelPage)},
        parameters=(_ANTHROPIC_VERSION,),
        failures=(ErrorEnvelope, MessagesError),
    ),
    Operation(
        "get",
        "/v1/models/{model}",
        "Describe one model.",
        {"200": either("The model.", ModelCard, ModelInfo)},
        parameters=(_MODEL, _ANTHROPIC_VERSION),
        failures=(ErrorEnvelope, MessagesError),
    ),
    Operation(
        "get",
        "/models",
        "List the models that are held, loaded or not.",
        {"200": content("The models.", JSON, {"type": "array", "items": ref("ManagedModel")})},
    ),
    Operation(
        "post",
        "/models/load",
        "Load a model, fetching it when it is not here.",
        {
            "200": _LOAD_ANSWER,
            "202": json_answer("It is on its way; `GET /models` says how far.", LoadResult),
        },
        body="LoadBody",
        parameters=(_WAIT,),
    ),
    Operation(
        "post",
        "/models/unload",
        "Let a model go, once its requests are finished.",
        {"200": json_answer("It is gone.", LoadResult)},
        body="UnloadBody",
    ),
    Operation(
        "get",
        "/models/{model}/endpoint",
        "Say where a loaded model answers.",
        {"200": json_answer("The base URL.", ModelEndpoint)},
        parameters=(_MODEL,),
    ),
    Operation(
        "get",
        "/models/{model}/capabilities",
        "Say what a model can do.",
        {"200": json_answer("Its capabilities.", ModelCapabilities)},
        parameters=(_MODEL,),
    ),
    Operation(
        "get",
        "/fleet/state",
        "Tell a gateway how the node is, as soon as that changes.",
        {"200": json_answer("Its state.", NodeState)},
        parameters=(_SINCE, _WAIT_S),
    ),
    Operation("get", "/health", "Say how the node is doing.", {"200": json_answer("Its health.", Health)}),
    Operation(
        "get",
        "/health/live",
        "Probe whether the process answers.",
        {"200": json_answer("It does.", ProbeBody)},
    ),
    Operation(
        "get",
        "/ping",
        "Another name of `/health/live`, behind a key where there are keys.",
        {"200": json_answer("It does.", ProbeBody)},
    ),
    Operation(
        "get",
        "/health/ready",
        "Probe whether requests should be sent here.",
        {"200": json_answer("They should.", ProbeBody), "503": json_answer("Not now.", ProbeBody)},
        can_fail=False,
    ),
    Operation(
        "get",
        "/discovery",
        "Say what machine and which engines these are.",
        {"200": json_answer("The machine.", Discovery)},
    ),
    Operation("get", "/version", "Name what is running.", {"200": json_answer("The versions.", Version)}),
    Operation("get", "/metrics", "Prometheus metrics.", {"200": text_answer("The metrics.", "text/plain")}),
    Operation(
        "get",
        "/openapi.json",
        "This document.",
        {"200": content("The document.", JSON, {"type": "object"})},
    ),
    Operation(
        "get",
        "/docs",
        "This document as a page.",
        {"200": text_answer("A page.", "text/html")},
    ),
    Operation("get", "/", "A page to start from.", {"200": text_answer("A page.", "text/html")}),
)
