"""Calls to another server for tokens, vectors and rankings: encoding them, and decoding the answers."""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from ganglion.core.engine import Embedded, EmbedRequest, Ranked, RankRequest, TokenizerInfo
from ganglion.core.errors import UpstreamUnavailable
from ganglion.core.request import TextPrompt
from ganglion.wire.tokenizer import TokenizerCard
from ganglion.wire.vectors import Vector, decode_base64, normalize

# Ours and vLLM's: `/tokenize` with `prompt` or `messages`, `/detokenize`, `/tokenizer_info`,
# `/apply_template`. llama-server's: `/apply-template`, and `/tokenize` with `content`.


class _Tokens(Struct, frozen=True):
    tokens: list[int]


class _Text(Struct, frozen=True):
    prompt: str | None = None
    content: str | None = None


_tokens = msgspec.json.Decoder(_Tokens)
_text = msgspec.json.Decoder(_Text)
_card = msgspec.json.Decoder(TokenizerCard)


def encode_tokenize(model: str, text: str, *, adds_special: bool, is_ours: bool) -> bytes:
    """The body of `/tokenize` for a text: in our words and vLLM's, for a foreign one in llama-server's too.

    llama-server finds no text where there is only a `prompt`, and says that it has no tokens.
    """
    fields = {"model": model, "prompt": text, "add_special_tokens": adds_special}
    return _encode(fields if is_ours else {**fields, "content": text, "add_special": adds_special})


def encode_tokenize_content(text: str) -> bytes:
    """The body of `/tokenize` for a prompt that is rendered, in llama-server's words."""
    return _encode({"content": text, "add_special": True, "parse_special": True})


def encode_detokenize(model: str, tokens: tuple[int, ...]) -> bytes:
    """The body of `/detokenize`, in everybody's words."""
    return _encode({"model": model, "tokens": tokens})


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Raise UpstreamUnavailable for an answer that cannot be read as this path gives it."""
    try:
        yield
    except (msgspec.MsgspecError, UnicodeError, ValueError, KeyError):
        raise UpstreamUnavailable(
            f"The server that holds this model answered {path} in an unknown format."
        ) from None


def decode_tokens(body: bytes) -> tuple[int, ...]:
    """The tokens of an answer of `/tokenize`; raises UpstreamUnavailable."""
    with _reading("/tokenize"):
        return tuple(_tokens.decode(body).tokens)


def decode_text(body: bytes) -> str:
    """The text of an answer of `/detokenize` or `/apply_template`; raises UpstreamUnavailable."""
    with _reading("/detokenize"):
        told = _text.decode(body)
        text = told.prompt if told.prompt is not None else told.content
        if text is None:
            raise ValueError
        return text


def decode_tokenizer_info(body: bytes) -> TokenizerInfo:
    """The tokenizer of an answer of `/tokenizer_info`; raises UpstreamUnavailable."""
    with _reading("/tokenizer_info"):
        card = _card.decode(body)
    return TokenizerInfo(
        card.vocab_size,
        card.model_max_length,
        card.chat_template,
        card.bos_token,
        card.eos_token,
        card.bos_token_id,
        card.eos_token_id,
        card.add_bos_token,
        tuple(card.end_token_ids),
    )


class _Vector(Struct, frozen=True):
    embedding: list[float] | str
    index: int | None = None


class _Usage(Struct, frozen=True):
    prompt_tokens: int = 0


class _Vectors(Struct, frozen=True):
    data: list[_Vector]
    usage: _Usage = _Usage()


class _RankedDocument(Struct, frozen=True):
    index: int
    relevance_score: float


class _Results(Struct, frozen=True):
    results: list[_RankedDocument]
    usage: _Usage = _Usage()


_vectors = msgspec.json.Decoder(_Vectors)
_results = msgspec.json.Decoder(_Results)
_encode = msgspec.json.Encoder().encode


def encode_embed(request: EmbedRequest, model: str, *, is_ours: bool) -> bytes:
    """The body of `/v1/embeddings`; ours answer in base64, which loses nothing."""
    inputs = [each.text if isinstance(each, TextPrompt) else each.tokens for each in request.inputs]
    form = "base64" if is_ours else "float"
    return _encode({"model": model, "input": inputs, "encoding_format": form})


def decode_embedded(body: bytes, request: EmbedRequest) -> Embedded:
    """The vectors in the inputs' order; raises UpstreamUnavailable."""
    with _reading("/v1/embeddings"):
        told = _vectors.decode(body)
        by_place = {place if each.index is None else each.index: each for place, each in enumerate(told.data)}
        vectors = [_values(by_place[place].embedding) for place in range(len(request.inputs))]
    if request.is_normalized:
        vectors = [normalize(vector) for vector in vectors]
    return Embedded(tuple(vector.tobytes() for vector in vectors), told.usage.prompt_tokens)


def encode_rank(request: RankRequest, model: str) -> bytes:
    """The body of `/v1/rerank`."""
    return _encode({"model": model, "query": request.query, "documents": request.documents})


def decode_ranked(body: bytes, request: RankRequest) -> Ranked:
    """The scores in the documents' order; raises UpstreamUnavailable."""
    with _reading("/v1/rerank"):
        told = _results.decode(body)
        scores = {each.index: each.relevance_score for each in told.results}
        in_order = tuple(scores[place] for place in range(len(request.documents)))
    return Ranked(in_order, told.usage.prompt_tokens)


def _values(told: list[float] | str) -> Vector:
    return array("f", told) if isinstance(told, list) else decode_base64(told)
