"""Ollama's own wire: JSON, one object a line where it streams, and streaming unless told otherwise.

A stream of `/api/chat`, in order: lines with `done: false` that each hold a piece of `message.content`, a
piece of `message.thinking`, or one whole tool call in `message.tool_calls`; one line with `done: true`, its
`done_reason` and what the answer cost. `/api/generate` says `response` and `thinking` at the top level
instead. A failure after the first byte is one line `{"error": "…"}` and the end. Silence is filled with a
line whose content is empty.

A stream of `/api/pull`: `{"status": "pulling manifest"}`; while bytes come, lines with `digest`, `total` and
`completed`; `{"status": "loading model"}`; `{"status": "success"}`, or `{"error": "…"}`.
"""

from ganglion.wire.answer_format import AnswerFormat
from ganglion.wire.ollama.embed import (
    OllamaEmbedCall,
    embed_body,
    embeddings_body,
    parse_embed,
    parse_embeddings,
)
from ganglion.wire.ollama.ollama_models import meant
from ganglion.wire.ollama.parse import parse_chat, parse_generate
from ganglion.wire.ollama.project import NDJSON, OllamaProjection, body, empty_reply
from ganglion.wire.ollama.schema import OllamaReplyContext

__all__ = [
    "ANSWERS",
    "NDJSON",
    "OllamaEmbedCall",
    "OllamaProjection",
    "OllamaReplyContext",
    "body",
    "embed_body",
    "embeddings_body",
    "empty_reply",
    "parse_chat",
    "parse_embed",
    "parse_embeddings",
    "parse_generate",
]

ANSWERS = tuple(
    AnswerFormat(
        path,
        "ollama-",
        parse,
        projection=lambda reply, _: OllamaProjection(reply),
        body=lambda answers, reply: body(answers[0], reply),
        framing=NDJSON,
        is_any_type=True,
        resolve_model=meant,
        empty_body=empty_reply,
    )
    for path, parse in (("/api/chat", parse_chat), ("/api/generate", parse_generate))
)
