"""The operations of Ollama's wire, as the OpenAPI document has them."""

import msgspec

from ganglion.wire.ollama.embed import OllamaEmbeddingsReply, OllamaEmbedReply
from ganglion.wire.ollama.errors import OllamaError
from ganglion.wire.ollama.ollama_models import (
    OllamaProcesses,
    OllamaPulled,
    OllamaShown,
    OllamaTags,
    OllamaVersion,
)
from ganglion.wire.ollama.schema import (
    OllamaChatBody,
    OllamaChatReply,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaGenerateReply,
    OllamaPullBody,
    OllamaShowBody,
)
from ganglion.wire.operation import JSON, Json, Operation, Shapes, json_answer, ref


def _lines(description: str, shape: type[msgspec.Struct]) -> Json:
    """A JSON body that is one such object a line where it streams."""
    schema: Json = {"schema": ref(shape.__name__)}
    return {"description": description, "content": {JSON: schema, "application/x-ndjson": {}}}


def _ollama(
    method: str, path: str, summary: str, answer: Json, body: type[msgspec.Struct] | None = None
) -> Operation:
    name = None if body is None else body.__name__
    return Operation(method, f"/api/{path}", summary, {"200": answer}, body=name, failures=(OllamaError,))


SHAPES: Shapes = (
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaShowBody,
    OllamaChatReply,
    OllamaGenerateReply,
    OllamaEmbedReply,
    OllamaEmbeddingsReply,
    OllamaShown,
    OllamaPullBody,
    OllamaPulled,
    OllamaTags,
    OllamaProcesses,
    OllamaVersion,
    OllamaError,
)

OPERATIONS: tuple[Operation, ...] = (
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
        "post",
        "embed",
        "Turn texts into vectors.",
        json_answer("The vectors.", OllamaEmbedReply),
        OllamaEmbedBody,
    ),
    _ollama(
        "post",
        "embeddings",
        "Turn one text into a vector, the older way.",
        json_answer("The vector.", OllamaEmbeddingsReply),
        OllamaEmbeddingsBody,
    ),
    _ollama("post", "show", "Describe a model.", json_answer("The model.", OllamaShown), OllamaShowBody),
    _ollama(
        "post", "pull", "Fetch and load a model.", _lines("How it got here.", OllamaPulled), OllamaPullBody
    ),
    _ollama("get", "tags", "List the models.", json_answer("The models.", OllamaTags)),
    _ollama("get", "ps", "List the models in memory.", json_answer("The models.", OllamaProcesses)),
    _ollama(
        "get", "version", "Name the version of Ollama's API.", json_answer("The version.", OllamaVersion)
    ),
)
