"""The OpenAPI 3.1 document: every route of a node, with schemas taken from the structs that the wires use."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ganglion.core.request import JsonValue
from ganglion.wire.chat.asked import ChatBody
from ganglion.wire.chat.reply import ChatCompletion, Chunk
from ganglion.wire.discovery import Discovery
from ganglion.wire.embeddings import EmbeddingList, EmbeddingsBody
from ganglion.wire.errors import ErrorEnvelope
from ganglion.wire.health import Health, Probe, Version
from ganglion.wire.management import Capabilities, Endpoint, HeldModel, LoadBody, Loaded, UnloadBody
from ganglion.wire.models import ModelCard, ModelList
from ganglion.wire.rerank import RerankBody, Reranked
from ganglion.wire.score import ScoreBody, Scores
from ganglion.wire.tokenizer import (
    DetokenizeAnswer,
    DetokenizeBody,
    TemplateAnswer,
    TemplateBody,
    TokenizeAnswer,
    TokenizeBody,
    TokenizerCard,
)

Json = dict[str, JsonValue]

_JSON = "application/json"
_SHAPES = (
    *(ChatBody, ChatCompletion, Chunk, ErrorEnvelope, ModelCard, ModelList),
    *(Discovery, Health, Probe, Version),
    *(EmbeddingsBody, EmbeddingList, RerankBody, Reranked, ScoreBody, Scores),
    *(TokenizeBody, TokenizeAnswer, DetokenizeBody, DetokenizeAnswer, TemplateBody, TemplateAnswer),
    *(TokenizerCard,),
    *(HeldModel, LoadBody, Loaded, UnloadBody, Endpoint, Capabilities),
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route."""

    method: str
    path: str
    summary: str
    answers: Json
    body: str | None = None
    parameters: Sequence[Json] = ()
    is_public: bool = False
    can_fail: bool = True


def document(version: str) -> Json:
    """The whole document."""
    paths: dict[str, JsonValue] = {}
    for operation in OPERATIONS:
        methods = paths.setdefault(operation.path, {})
        assert isinstance(methods, dict)
        methods[operation.method] = _described(operation)
    _, schemas = msgspec.json.schema_components(_SHAPES, ref_template="#/components/schemas/{name}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ganglion",
            "version": version,
            "description": "An inference node. Errors of every route have the shape of ErrorEnvelope.",
        },
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def encode(value: Json) -> bytes:
    """The document as it is served."""
    return msgspec.json.encode(value)


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(description: str, media_type: str, schema: Json) -> Json:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _json(description: str, shape: type[msgspec.Struct]) -> Json:
    return _content(description, _JSON, _ref(shape.__name__))


def _text(description: str, media_type: str) -> Json:
    return _content(description, media_type, {"type": "string"})


def _header(name: str, description: str) -> Json:
    schema: Json = {"type": "string", "enum": ["0", "1"]}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _described(operation: Operation) -> Json:
    answers: Json = dict(operation.answers)
    if operation.can_fail:
        answers["4XX"] = _json("The request cannot be answered as it stands.", ErrorEnvelope)
        answers["5XX"] = _json("The server cannot answer now; a 503 says when to retry.", ErrorEnvelope)
    described: Json = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "responses": answers,
    }
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {_JSON: {"schema": _ref(operation.body)}}}
    if operation.is_public:
        described["security"] = []
    return described


def _operation_id(operation: Operation) -> str:
    words = operation.path.replace("{", "").replace("}", "").replace(".", "/").split("/")
    return "_".join([operation.method, *filter(None, words)])


_CHAT_ANSWER: Json = {
    "description": "The answer; with `stream` true, server-sent events that each hold a Chunk.",
    "content": {
        _JSON: {"schema": _ref("ChatCompletion")},
        "text/event-stream": {},
    },
}
_MODEL: Json = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "A model id; ids may hold slashes, which callers percent-encode or not.",
    "schema": {"type": "string"},
}

_LOAD_ANSWER: Json = {
    "description": "It is loaded; with `accept: text/event-stream`, how it got there.",
    "content": {_JSON: {"schema": _ref("Loaded")}, "text/event-stream": {}},
}
_WAIT: Json = {
    "name": "wait",
    "in": "query",
    "required": False,
    "description": "false answers 202 at once.",
    "schema": {"type": "string", "enum": ["true", "false"]},
}

_NAMED: Json = {
    "name": "model",
    "in": "query",
    "required": False,
    "description": "A model; may be left out where one is here.",
    "schema": {"type": "string"},
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a conversation, whole or as a stream.",
        {"200": _CHAT_ANSWER},
        body="ChatBody",
        parameters=(
            _header("x-thought", "1 shows reasoning as `thought` at the top level too."),
            _header("x-include-thinking", "1 leaves reasoning inside the content with its markers."),
        ),
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "Make a vector of each input.",
        {"200": _json("The vectors.", EmbeddingList)},
        body="EmbeddingsBody",
    ),
    Operation(
        "post",
        "/v1/rerank",
        "Order documents by how well they answer a query.",
        {"200": _json("The documents, best first.", Reranked)},
        body="RerankBody",
    ),
    Operation(
        "post",
        "/v1/score",
        "Say how likely the tokens of a prompt are.",
        {"200": _json("The logprobs of each range.", Scores)},
        body="ScoreBody",
    ),
    Operation(
        "post",
        "/tokenize",
        "Turn a text or a chat into tokens.",
        {"200": _json("The tokens.", TokenizeAnswer)},
        body="TokenizeBody",
    ),
    Operation(
        "post",
        "/detokenize",
        "Turn tokens into text.",
        {"200": _json("The text.", DetokenizeAnswer)},
        body="DetokenizeBody",
    ),
    Operation(
        "post",
        "/apply_template",
        "Show a chat as the model reads it.",
        {"200": _json("The prompt.", TemplateAnswer)},
        body="TemplateBody",
    ),
    Operation(
        "get",
        "/tokenizer_info",
        "Describe a model's tokenizer.",
        {"200": _json("The tokenizer.", TokenizerCard)},
        parameters=(_NAMED,),
    ),
    Operation("get", "/v1/models", "List the models.", {"200": _json("The models.", ModelList)}),
    Operation(
        "get",
        "/v1/models/{model}",
        "Describe one model.",
        {"200": _json("The model.", ModelCard)},
        parameters=(_MODEL,),
    ),
    Operation(
        "get",
        "/models",
        "List the models that are held, loaded or not.",
        {"200": _content("The models.", _JSON, {"type": "array", "items": _ref("HeldModel")})},
    ),
    Operation(
        "post",
        "/models/load",
        "Load a model, fetching it when it is not here.",
        {"200": _LOAD_ANSWER, "202": _json("It is on its way; `GET /models` says how far.", Loaded)},
        body="LoadBody",
        parameters=(_WAIT,),
    ),
    Operation(
        "post",
        "/models/unload",
        "Let a model go, once its requests are finished.",
        {"200": _json("It is gone.", Loaded)},
        body="UnloadBody",
    ),
    Operation(
        "get",
        "/models/{model}/endpoint",
        "Say where a loaded model answers.",
        {"200": _json("The base URL.", Endpoint)},
        parameters=(_MODEL,),
    ),
    Operation(
        "get",
        "/models/{model}/capabilities",
        "Say what a model can do.",
        {"200": _json("Its capabilities.", Capabilities)},
        parameters=(_MODEL,),
    ),
    Operation("get", "/health", "Say how the node is doing.", {"200": _json("Its health.", Health)}),
    Operation(
        "get",
        "/health/live",
        "Probe whether the process answers.",
        {"200": _json("It does.", Probe)},
        is_public=True,
    ),
    Operation(
        "get",
        "/health/ready",
        "Probe whether requests should be sent here.",
        {"200": _json("They should.", Probe), "503": _json("Not now.", Probe)},
        is_public=True,
        can_fail=False,
    ),
    Operation(
        "get",
        "/discovery",
        "Say what machine and which engines these are.",
        {"200": _json("The machine.", Discovery)},
    ),
    Operation("get", "/version", "Name what is running.", {"200": _json("The versions.", Version)}),
    Operation("get", "/metrics", "Prometheus metrics.", {"200": _text("The metrics.", "text/plain")}),
    Operation(
        "get",
        "/openapi.json",
        "This document.",
        {"200": _content("The document.", _JSON, {"type": "object"})},
    ),
    Operation(
        "get", "/docs", "This document as a page.", {"200": _text("A page.", "text/html")}, is_public=True
    ),
    Operation("get", "/", "A page to start from.", {"200": _text("A page.", "text/html")}, is_public=True),
)
