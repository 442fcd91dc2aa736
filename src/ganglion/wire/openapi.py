"""The OpenAPI 3.1 document: every route of a node, with schemas taken from the structs that the wires use."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ganglion.core.request import JsonValue
from ganglion.wire.chat.asked import ChatBody
from ganglion.wire.chat.reply import ChatCompletion, Chunk
from ganglion.wire.completions.asked import CompletionBody
from ganglion.wire.completions.reply import Completion
from ganglion.wire.discovery import Discovery
from ganglion.wire.embeddings import EmbeddingList, EmbeddingsBody
from ganglion.wire.errors import ErrorEnvelope
from ganglion.wire.health import Health, Probe, Version
from ganglion.wire.management import Capabilities, Endpoint, HeldModel, LoadBody, Loaded, UnloadBody
from ganglion.wire.messages.asked import CountBody, MessagesBody
from ganglion.wire.messages.models import ModelInfo, ModelPage
from ganglion.wire.messages.refusal import ErrorMessage
from ganglion.wire.messages.reply import AnsweredMessage, TokenCount
from ganglion.wire.models import ModelCard, ModelList
from ganglion.wire.ollama.asked import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaPullBody,
    OllamaShowBody,
)
from ganglion.wire.ollama.embed import OllamaEmbeddingsReply, OllamaEmbedReply
from ganglion.wire.ollama.errors import OllamaError
from ganglion.wire.ollama.models import OllamaProcesses, OllamaShown, OllamaTags, OllamaVersion
from ganglion.wire.ollama.pull import OllamaPulled
from ganglion.wire.ollama.reply import OllamaChatReply, OllamaGenerateReply
from ganglion.wire.rerank import RerankBody, Reranked
from ganglion.wire.responses.asked import (
    CompactBody,
    ConversationBody,
    ConversationUpdateBody,
    ItemsBody,
    ResponsesBody,
)
from ganglion.wire.responses.reply import ResponseObject
from ganglion.wire.responses.stored import (
    CompactedResponse,
    Conversation,
    DeletedConversation,
    DeletedResponse,
    InputTokens,
    ItemList,
)
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
    *(ResponsesBody, ResponseObject, InputTokens, CompactBody, CompactedResponse, DeletedResponse, ItemList),
    *(Conversation, ConversationBody, ConversationUpdateBody, DeletedConversation, ItemsBody),
    *(MessagesBody, CountBody, AnsweredMessage, TokenCount, ErrorMessage, ModelInfo, ModelPage),
    *(CompletionBody, Completion),
    *(Discovery, Health, Probe, Version),
    *(EmbeddingsBody, EmbeddingList, RerankBody, Reranked, ScoreBody, Scores),
    *(TokenizeBody, TokenizeAnswer, DetokenizeBody, DetokenizeAnswer, TemplateBody, TemplateAnswer),
    *(TokenizerCard,),
    *(HeldModel, LoadBody, Loaded, UnloadBody, Endpoint, Capabilities),
    *(OllamaChatBody, OllamaGenerateBody, OllamaEmbedBody, OllamaEmbeddingsBody, OllamaShowBody),
    *(OllamaChatReply, OllamaGenerateReply, OllamaEmbedReply, OllamaEmbeddingsReply, OllamaShown),
    *(OllamaPullBody, OllamaPulled, OllamaTags, OllamaProcesses, OllamaVersion, OllamaError),
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
    failure: type[msgspec.Struct] = ErrorEnvelope


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
            "description": "An inference node. Each route tells errors in the words of its wire.",
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


def _either(description: str, *shapes: type[msgspec.Struct]) -> Json:
    return _content(description, _JSON, {"anyOf": [_ref(shape.__name__) for shape in shapes]})


def _text(description: str, media_type: str) -> Json:
    return _content(description, media_type, {"type": "string"})


def _header(name: str, description: str) -> Json:
    schema: Json = {"type": "string", "enum": ["0", "1"]}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _described(operation: Operation) -> Json:
    answers: Json = dict(operation.answers)
    if operation.can_fail:
        answers["4XX"] = _json("The request cannot be answered as it stands.", operation.failure)
        answers["5XX"] = _json("The server cannot answer now; a 503 says when to retry.", operation.failure)
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
_RESPONSES_ANSWER: Json = {
    "description": "The response; with `stream` true, server-sent events, each named by its type.",
    "content": {_JSON: {"schema": _ref("ResponseObject")}, "text/event-stream": {}},
}
_ID: Json = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_ITEM: Json = _ID | {"name": "item"}
_STREAM: Json = {
    "name": "stream",
    "in": "query",
    "required": False,
    "description": "true streams the events of a response that runs or ran in the background.",
    "schema": {"type": "string", "enum": ["true", "false"]},
}
_STARTING_AFTER: Json = {
    "name": "starting_after",
    "in": "query",
    "required": False,
    "description": "The sequence number of the last event that was heard.",
    "schema": {"type": "integer", "minimum": 0, "maximum": 2**53},
}
_PAGE: tuple[Json, ...] = (
    {
        "name": "limit",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": 100},
    },
    {
        "name": "order",
        "in": "query",
        "required": False,
        "schema": {"type": "string", "enum": ["asc", "desc"]},
    },
    {"name": "after", "in": "query", "required": False, "schema": {"type": "string"}},
)
_MESSAGES_ANSWER: Json = {
    "description": "The answer; with `stream` true, named server-sent events.",
    "content": {_JSON: {"schema": _ref("AnsweredMessage")}, "text/event-stream": {}},
}
_ANTHROPIC_VERSION: Json = {
    "name": "anthropic-version",
    "in": "header",
    "required": False,
    "description": "Any value asks for the words of Anthropic's wire.",
    "schema": {"type": "string", "enum": ["2023-06-01"]},
}
_COMPLETION_ANSWER: Json = {
    "description": "The completions; with `stream` true, server-sent events that each hold a Completion.",
    "content": {_JSON: {"schema": _ref("Completion")}, "text/event-stream": {}},
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


def _lines(description: str, shape: type[msgspec.Struct]) -> Json:
    """A JSON body that is one such object a line where it streams."""
    schema: Json = {"schema": _ref(shape.__name__)}
    return {"description": description, "content": {_JSON: schema, "application/x-ndjson": {}}}


def _ollama(
    method: str, path: str, summary: str, answer: Json, body: type[msgspec.Struct] | None = None
) -> Operation:
    name = None if body is None else body.__name__
    return Operation(method, f"/api/{path}", summary, {"200": answer}, body=name, failure=OllamaError)


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
        "/v1/completions",
        "Continue prompts as they stand, whole or as a stream.",
        {"200": _COMPLETION_ANSWER},
        body="CompletionBody",
    ),
    Operation(
        "post",
        "/v1/responses",
        "Answer a conversation of items, whole or as a stream.",
        {"200": _RESPONSES_ANSWER},
        body="ResponsesBody",
    ),
    Operation(
        "post",
        "/v1/responses/input_tokens",
        "Count the tokens of a call without answering it.",
        {"200": _json("The count.", InputTokens)},
        body="ResponsesBody",
    ),
    Operation(
        "post",
        "/v1/responses/compact",
        "Make a long conversation short.",
        {"200": _json("The conversation to go on with.", CompactedResponse)},
        body="CompactBody",
    ),
    Operation(
        "get",
        "/v1/responses/{id}",
        "Read a kept response, or the rest of its stream.",
        {"200": _RESPONSES_ANSWER},
        parameters=(_ID, _STREAM, _STARTING_AFTER),
    ),
    Operation(
        "delete",
        "/v1/responses/{id}",
        "Delete a kept response.",
        {"200": _json("It is gone.", DeletedResponse)},
        parameters=(_ID,),
    ),
    Operation(
        "post",
        "/v1/responses/{id}/cancel",
        "Cancel a response that runs in the background.",
        {"200": _json("The response as it was when it was cancelled.", ResponseObject)},
        parameters=(_ID,),
    ),
    Operation(
        "get",
        "/v1/responses/{id}/input_items",
        "List what a response was sent.",
        {"200": _json("A page of items.", ItemList)},
        parameters=(_ID, *_PAGE),
    ),
    Operation(
        "post",
        "/v1/conversations",
        "Begin a conversation.",
        {"200": _json("The conversation.", Conversation)},
        body="ConversationBody",
    ),
    Operation(
        "get",
        "/v1/conversations/{id}",
        "Describe a conversation.",
        {"200": _json("The conversation.", Conversation)},
        parameters=(_ID,),
    ),
    Operation(
        "post",
        "/v1/conversations/{id}",
        "Give a conversation other metadata.",
        {"200": _json("The conversation.", Conversation)},
        body="ConversationUpdateBody",
        parameters=(_ID,),
    ),
    Operation(
        "delete",
        "/v1/conversations/{id}",
        "Delete a conversation.",
        {"200": _json("It is gone.", DeletedConversation)},
        parameters=(_ID,),
    ),
    Operation(
        "get",
        "/v1/conversations/{id}/items",
        "List what a conversation holds.",
        {"200": _json("A page of items.", ItemList)},
        parameters=(_ID, *_PAGE),
    ),
    Operation(
        "post",
        "/v1/conversations/{id}/items",
        "Add items to a conversation.",
        {"200": _json("The items as they are kept.", ItemList)},
        body="ItemsBody",
        parameters=(_ID,),
    ),
    Operation(
        "get",
        "/v1/conversations/{id}/items/{item}",
        "Read one item.",
        {"200": _content("The item.", _JSON, {"type": "object"})},
        parameters=(_ID, _ITEM),
    ),
    Operation(
        "delete",
        "/v1/conversations/{id}/items/{item}",
        "Take one item out of a conversation.",
        {"200": _json("The conversation.", Conversation)},
        parameters=(_ID, _ITEM),
    ),
    Operation(
        "post",
        "/v1/messages",
        "Answer a conversation in the words of Anthropic's wire.",
        {"200": _MESSAGES_ANSWER},
        body="MessagesBody",
        failure=ErrorMessage,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation.",
        {"200": _json("The count.", TokenCount)},
        body="CountBody",
        failure=ErrorMessage,
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
    Operation(
        "get",
        "/v1/models",
        "List the models.",
        {"200": _either("The models.", ModelList, ModelPage)},
        parameters=(_ANTHROPIC_VERSION,),
    ),
    Operation(
        "get",
        "/v1/models/{model}",
        "Describe one model.",
        {"200": _either("The model.", ModelCard, ModelInfo)},
        parameters=(_MODEL, _ANTHROPIC_VERSION),
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
    _ollama(
        "post",
        "chat",
        "Answer a conversation in Ollama's words, as a stream unless told otherwise.",
        _lines("The answer.", OllamaChatReply),
        OllamaChatBody,
    ),
    _ollama(
        "post",
        "generate",
        "Answer or continue a text in Ollama's words.",
        _lines("The answer.", OllamaGenerateReply),
        OllamaGenerateBody,
    ),
    _ollama(
        "post", "embed", "Turn texts into vectors.", _json("The vectors.", OllamaEmbedReply), OllamaEmbedBody
    ),
    _ollama(
        "post",
        "embeddings",
        "Turn one text into a vector, the older way.",
        _json("The vector.", OllamaEmbeddingsReply),
        OllamaEmbeddingsBody,
    ),
    _ollama("post", "show", "Describe a model.", _json("The model.", OllamaShown), OllamaShowBody),
    _ollama(
        "post", "pull", "Fetch and load a model.", _lines("How it got here.", OllamaPulled), OllamaPullBody
    ),
    _ollama("get", "tags", "List the models.", _json("The models.", OllamaTags)),
    _ollama("get", "ps", "List the models in memory.", _json("The models.", OllamaProcesses)),
    _ollama("get", "version", "Name the version of Ollama's API.", _json("The version.", OllamaVersion)),
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
