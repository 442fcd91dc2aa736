"""Reranking in the format that Cohere and Jina share: a query and documents in, the best ones out."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ganglion.core.engine import Ranked, RankRequest
from ganglion.core.errors import UnsupportedParameter
from ganglion.wire.decode import FIELDS, decode
from ganglion.wire.fields import ModelName
from ganglion.wire.unknown_fields import refuse_unknown

_MAX_DOCUMENTS = 1024

_Text = Annotated[str, Meta(min_length=1)]


class RerankText(Struct, frozen=True):
    """A document as an object."""

    text: _Text


class RerankBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/rerank`."""

    model: ModelName
    query: _Text
    documents: Annotated[list[_Text | RerankText], Meta(min_length=1, max_length=_MAX_DOCUMENTS)]
    top_n: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    return_documents: bool | None = None
    user: str | None = None


class RerankResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One document's place in the list that was sent, and how well it fits."""

    index: int
    relevance_score: float
    document: RerankText | None = None


class RerankUsage(Struct, frozen=True, kw_only=True):
    """The tokens of the query and the documents."""

    prompt_tokens: int
    total_tokens: int


class Reranked(Struct, frozen=True, kw_only=True):
    """The answer, best first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: RerankUsage


@dataclass(frozen=True, slots=True)
class RerankCall:
    """A parsed body."""

    request: RankRequest
    top_n: int | None
    is_returned: bool


_body = msgspec.json.Decoder(RerankBody)
_encode = msgspec.json.Encoder().encode
_UNSUPPORTED = ("rank_fields", "max_chunks_per_doc", "max_tokens_per_doc", "truncate_prompt_tokens")


def parse(body: bytes, *, request_id: str, tenant: str, is_strict: bool) -> RerankCall:
    """Read a body, or raise the InvalidRequest that names the first thing wrong with it."""
    fields = decode(FIELDS, body)
    given = decode(_body, body)
    for name in _UNSUPPORTED:
        if name in fields and bytes(fields[name]) != b"null":
            raise UnsupportedParameter(f"The parameter '{name}' is not supported.", param=name)
    refuse_unknown(body, RerankBody, is_strict=is_strict)
    documents = tuple(each if isinstance(each, str) else each.text for each in given.documents)
    request = RankRequest(request_id, given.model, given.query, documents, tenant)
    return RerankCall(request, given.top_n, bool(given.return_documents))


def body(ranked: Ranked, call: RerankCall) -> bytes:
    """The whole answer."""
    places = sorted(range(len(ranked.scores)), key=lambda place: -ranked.scores[place])
    results = [
        RerankResult(
            index=place,
            relevance_score=ranked.scores[place],
            document=RerankText(call.request.documents[place]) if call.is_returned else None,
        )
        for place in places[: call.top_n]
    ]
    usage = RerankUsage(prompt_tokens=ranked.prompt_tokens, total_tokens=ranked.prompt_tokens)
    request = call.request
    return _encode(Reranked(id=request.id, model=request.model, results=results, usage=usage))
