"""Ollama's embeddings: `/api/embed` and the older `/api/embeddings`."""

from array import array
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from ganglion.core.engine import Embedded, EmbedRequest
from ganglion.core.request import TextPrompt
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.decode import decode
from ganglion.wire.ollama.options import is_unloading
from ganglion.wire.ollama.parse import check_fields
from ganglion.wire.ollama.schema import OllamaEmbedBody, OllamaEmbeddingsBody, nanoseconds
from ganglion.wire.vectors import cut

_embed = msgspec.json.Decoder(OllamaEmbedBody)
_embeddings = msgspec.json.Decoder(OllamaEmbeddingsBody)
_encode = msgspec.json.Encoder().encode


class OllamaEmbedReply(Struct, frozen=True, kw_only=True):
    """The vectors, in the order of the inputs; durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsReply(Struct, frozen=True):
    """One vector, not normalised."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class OllamaEmbedCall:
    """A parsed body."""

    request: EmbedRequest
    may_truncate: bool = False
    """Whether an input that is too long is cut instead of refused."""
    dimensions: int | None = None
    unknown_fields: tuple[str, ...] = ()


def parse_embed(body: bytes, context: ParseContext) -> OllamaEmbedCall:
    """Read a body of `/api/embed`, or raise the InvalidRequest that names what is wrong with it."""
    unknown = check_fields(body, OllamaEmbedBody, is_strict=context.is_strict)
    fields = decode(_embed, body)
    is_unloading(fields.keep_alive)
    texts = fields.input if isinstance(fields.input, list) else [fields.input] if fields.input else []
    return OllamaEmbedCall(
        _request(fields.model, texts, context, is_normalized=True),
        may_truncate=fields.truncate is not False,
        dimensions=fields.dimensions or None,
        unknown_fields=unknown,
    )


def parse_embeddings(body: bytes, context: ParseContext) -> OllamaEmbedCall:
    """Read a body of `/api/embeddings`, or raise the InvalidRequest that names what is wrong with it."""
    unknown = check_fields(body, OllamaEmbeddingsBody, is_strict=context.is_strict)
    fields = decode(_embeddings, body)
    is_unloading(fields.keep_alive)
    texts = [fields.prompt] if fields.prompt else []
    return OllamaEmbedCall(
        _request(fields.model, texts, context, is_normalized=False), may_truncate=True, unknown_fields=unknown
    )


def embed_body(call: OllamaEmbedCall, embedded: Embedded, total_s: float) -> bytes:
    """The body of `/api/embed`."""
    vectors = [array("f", vector) for vector in embedded.vectors]
    return _encode(
        OllamaEmbedReply(
            model=call.request.model,
            embeddings=[cut(vector, call.dimensions).tolist() for vector in vectors],
            total_duration=nanoseconds(total_s),
            load_duration=0,
            prompt_eval_count=embedded.prompt_tokens,
        )
    )


def embeddings_body(_: OllamaEmbedCall, embedded: Embedded, total_s: float) -> bytes:
    """The body of `/api/embeddings`."""
    vectors = [array("f", vector).tolist() for vector in embedded.vectors]
    return _encode(OllamaEmbeddingsReply(vectors[0] if vectors else []))


def _request(model: str, texts: list[str], context: ParseContext, *, is_normalized: bool) -> EmbedRequest:
    inputs = tuple(TextPrompt(text) for text in texts)
    return EmbedRequest(context.id, model, inputs, is_normalized=is_normalized, tenant=context.tenant)
