"""The operations of Ollama's wire, as the OpenAPI document has them."""

from functools import partial

from ganglion.wire import operation
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
from ganglion.wire.operation import Operation, streamed_answer

_get = partial(operation.get, failures=(OllamaError,))
_post = partial(operation.post, failures=(OllamaError,))
_lines = partial(streamed_answer, media_type="application/x-ndjson")

_CHAT = "Answer a conversation in Ollama's words, as a stream unless told otherwise."
_GENERATE = "Answer or continue a text in Ollama's words."
_EMBEDDINGS = "Turn one text into a vector, the older way."

OPERATIONS: tuple[Operation, ...] = (
    _post("/api/chat", _CHAT, _lines("The answer.", OllamaChatReply), body=OllamaChatBody),
    _post("/api/generate", _GENERATE, _lines("The answer.", OllamaGenerateReply), body=OllamaGenerateBody),
    _post("/api/embed", "Turn texts into vectors.", "The vectors.", OllamaEmbedReply, body=OllamaEmbedBody),
    _post("/api/embeddings", _EMBEDDINGS, "The vector.", OllamaEmbeddingsReply, body=OllamaEmbeddingsBody),
    _post("/api/show", "Describe a model.", "The model.", OllamaShown, body=OllamaShowBody),
    _post(
        "/api/pull",
        "Fetch and load a model.",
        _lines("How it got here.", OllamaPulled),
        body=OllamaPullBody,
    ),
    _get("/api/tags", "List the models.", "The models.", OllamaTags),
    _get("/api/ps", "List the models in memory.", "The models.", OllamaProcesses),
    _get("/api/version", "Name the version of Ollama's API.", "The version.", OllamaVersion),
)
