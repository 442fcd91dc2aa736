"""Ollama's own wire: JSON, one object a line where it streams, and streaming unless told otherwise.

A stream of `/api/chat`, in order: lines with `done: false` that each hold a piece of `message.content`, a
piece of `message.thinking`, or one whole tool call in `message.tool_calls`; one line with `done: true`, its
`done_reason` and what the answer cost. `/api/generate` says `response` and `thinking` at the top level
instead. A failure after the first byte is one line `{"error": "…"}` and the end. Silence is filled with a
line whose content is empty.

A stream of `/api/pull`: `{"status": "pulling manifest"}`; while bytes come, lines with `digest`, `total` and
`completed`; `{"status": "loading model"}`; `{"status": "success"}`, or `{"error": "…"}`.
"""

from ganglion.wire.ollama.embed import EmbedCall, embed_body, embeddings_body, parse_embed, parse_embeddings
from ganglion.wire.ollama.errors import envelope
from ganglion.wire.ollama.reply import Reply
from ganglion.wire.ollama.request import Arrival, Call, parse_chat, parse_generate
from ganglion.wire.ollama.stream import OllamaProjection, body, ndjson, nothing_said

__all__ = [
    "Arrival",
    "Call",
    "EmbedCall",
    "OllamaProjection",
    "Reply",
    "body",
    "embed_body",
    "embeddings_body",
    "envelope",
    "ndjson",
    "nothing_said",
    "parse_chat",
    "parse_embed",
    "parse_embeddings",
    "parse_generate",
]
