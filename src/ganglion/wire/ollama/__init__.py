"""Ollama's own wire: JSON, one object a line where it streams, and streaming unless told otherwise.

A stream of `/api/chat`, in order: lines with `done: false` that each hold a piece of `message.content`, a
piece of `message.thinking`, or one whole tool call in `message.tool_calls`; one line with `done: true`, its
`done_reason` and what the answer cost. `/api/generate` says `response` and `thinking` at the top level
instead. A failure after the first byte is one line `{"error": "…"}` and the end. Silence is filled with a
line whose content is empty.

A stream of `/api/pull`: `{"status": "pulling manifest"}`; while bytes come, lines with `digest`, `total` and
`completed`; `{"status": "loading model"}`; `{"status": "success"}`, or `{"error": "…"}`.
"""

from ganglion.wire.ollama.embed import (
    OllamaEmbedCall,
    embed_body,
    embeddings_body,
    parse_embed,
    parse_embeddings,
)
from ganglion.wire.ollama.errors import encode_error
from ganglion.wire.ollama.parse import OllamaAnswerCall, OllamaParseContext, parse_chat, parse_generate
from ganglion.wire.ollama.project import OllamaProjection, body, empty_reply, ndjson
from ganglion.wire.ollama.schema import OllamaReplyContext

__all__ = [
    "OllamaAnswerCall",
    "OllamaEmbedCall",
    "OllamaParseContext",
    "OllamaProjection",
    "OllamaReplyContext",
    "body",
    "embed_body",
    "embeddings_body",
    "empty_reply",
    "encode_error",
    "ndjson",
    "parse_chat",
    "parse_embed",
    "parse_embeddings",
    "parse_generate",
]
