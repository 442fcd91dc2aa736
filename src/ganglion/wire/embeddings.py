"""OpenAI's embeddings: texts or token ids in, one vector each out."""

from array import array
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from ganglion.core.engine import Embedded, EmbedRequest
from ganglion.core.errors import InvalidValue
from ganglion.core.request import TextPrompt, TokenPrompt
from ganglion.wire.decode import decode
from ganglion.wire.fields import ModelName, TokenId
from ganglion.wire.unknown_fields import refuse_unknown
from ganglion.wire.vectors import cut, encode_base64

_MAX_INPUTS = 2048
_MAX_TOKENS = 2**20

_Text = Annotated[str, Meta(min_length=1)]
_TokenList = Annotated[list[TokenId], Meta(min_length=1, max_length=_MAX_TOKENS)]


class EmbeddingsBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/embeddings`; a list holds texts, token ids, or lists of these."""

    model: ModelName
    input: _Text | Annotated[list[_Text | TokenId | _TokenList], Meta(min_length=1, max_length=_MAX_TOKENS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    user: str | None = None


class EmbeddingItem(Struct, frozen=True, kw_only=True):
    """One vector, as numbers or as base64 of float32 in little-endian order."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct, frozen=True, kw_only=True):
    """The tokens of the inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, frozen=True, kw_only=True):
    """The answer: a vector for each input, in order."""

    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


@dataclass(frozen=True, slots=True)
class EmbeddingsCall:
    """A parsed body: the request, and the form of its answer."""

    request: EmbedRequest
    is_base64: bool
    dimensions: int | None


_body = msgspec.json.Decoder(EmbeddingsBody)
_encode = msgspec.json.Encoder().encode


def parse(body: bytes, *, request_id: str, tenant: str, is_strict: bool) -> EmbeddingsCall:
    """Read a body, or raise the InvalidRequest that names the first thing wrong with it."""
    fields = decode(_body, body)
    refuse_unknown(body, EmbeddingsBody, is_strict=is_strict)
    request = EmbedRequest(request_id, fields.model, _inputs(fields.input), tenant=tenant)
    return EmbeddingsCall(request, fields.encoding_format == "base64", fields.dimensions)


def _inputs(given: str | list[str | int | list[int]]) -> tuple[TextPrompt | TokenPrompt, ...]:
    if isinstance(given, str):
        return (TextPrompt(given),)
    kinds = {type(each) for each in given}
    if len(kinds) > 1:
        raise InvalidValue("'input' mixes texts and token ids; give one kind.", param="input")
    if kinds == {int}:
        return (TokenPrompt(tuple(each for each in given if isinstance(each, int))),)
    if len(given) > _MAX_INPUTS:
        raise InvalidValue(f"'input' holds {len(given)} inputs; {_MAX_INPUTS} is the most.", param="input")
    return tuple(
        TextPrompt(each) if isinstance(each, str) else TokenPrompt(tuple(each))
        for each in given
        if not isinstance(each, int)
    )


def body(embedded: Embedded, call: EmbeddingsCall) -> bytes:
    """The whole answer."""
    items = [
        EmbeddingItem(index=place, embedding=_shown(vector, call))
        for place, vector in enumerate(embedded.vectors)
    ]
    usage = EmbeddingUsage(prompt_tokens=embedded.prompt_tokens, total_tokens=embedded.prompt_tokens)
    return _encode(EmbeddingList(data=items, model=call.request.model, usage=usage))


def _shown(vector: bytes, call: EmbeddingsCall) -> list[float] | str:
    values = cut(array("f", vector), call.dimensions)
    return encode_base64(values) if call.is_base64 else values.tolist()
