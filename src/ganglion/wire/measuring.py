"""How another server is asked for vectors and rankings, and what it answers."""

import sys
from array import array
from base64 import b64decode
from math import sqrt

import msgspec
from msgspec import Struct

from ganglion.core.engine import Embedded, EmbedRequest, Ranked, RankRequest
from ganglion.core.errors import UpstreamUnavailable
from ganglion.core.request import TextPrompt


class _Vector(Struct, frozen=True):
    embedding: list[float] | str
    index: int | None = None


class _Usage(Struct, frozen=True):
    prompt_tokens: int = 0


class _Vectors(Struct, frozen=True):
    data: list[_Vector]
    usage: _Usage = _Usage()


class _Result(Struct, frozen=True):
    index: int
    relevance_score: float


class _Results(Struct, frozen=True):
    results: list[_Result]
    usage: _Usage = _Usage()


_vectors = msgspec.json.Decoder(_Vectors)
_results = msgspec.json.Decoder(_Results)
_encode = msgspec.json.Encoder().encode


def embed_body(request: EmbedRequest, model: str, *, is_ours: bool) -> bytes:
    """The body of `/v1/embeddings`; ours answer in base64, which loses nothing."""
    inputs = [each.text if isinstance(each, TextPrompt) else each.tokens for each in request.inputs]
    form = "base64" if is_ours else "float"
    return _encode({"model": model, "input": inputs, "encoding_format": form})


def embedded_of(body: bytes, request: EmbedRequest) -> Embedded:
    """The vectors in the inputs' order; raises UpstreamUnavailable."""
    try:
        told = _vectors.decode(body)
        by_place = {place if each.index is None else each.index: each for place, each in enumerate(told.data)}
        vectors = [_values(by_place[place].embedding) for place in range(len(request.inputs))]
    except (msgspec.MsgspecError, UnicodeError, ValueError, KeyError):
        raise _strange("/v1/embeddings") from None
    if request.is_normalized:
        vectors = [_normalized(vector) for vector in vectors]
    return Embedded(tuple(vector.tobytes() for vector in vectors), told.usage.prompt_tokens)


def rank_body(request: RankRequest, model: str) -> bytes:
    """The body of `/v1/rerank`."""
    return _encode({"model": model, "query": request.query, "documents": request.documents})


def ranked_of(body: bytes, request: RankRequest) -> Ranked:
    """The scores in the documents' order; raises UpstreamUnavailable."""
    try:
        told = _results.decode(body)
        scores = {each.index: each.relevance_score for each in told.results}
        in_order = tuple(scores[place] for place in range(len(request.documents)))
    except (msgspec.MsgspecError, UnicodeError, KeyError):
        raise _strange("/v1/rerank") from None
    return Ranked(in_order, told.usage.prompt_tokens)


def _values(told: list[float] | str) -> "array[float]":
    if isinstance(told, list):
        return array("f", told)
    values = array("f", b64decode(told, validate=True))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _normalized(vector: "array[float]") -> "array[float]":
    length = sqrt(sum(value * value for value in vector))
    if length == 0.0 or abs(length - 1.0) < 1e-6:
        return vector
    return array("f", [value / length for value in vector])


def _strange(path: str) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"The server that holds this model answers {path} in no way that is known.")
