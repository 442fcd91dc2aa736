"""The tokenizer routes, for prompt debuggers and evaluation harnesses: tokens, texts and templates.

`/tokenize` and `/detokenize` are understood in vLLM's words (prompt, messages) and in llama-server's
(content).
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ganglion.core.engine import TokenizerInfo
from ganglion.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from ganglion.wire.decode import FIELDS, decode
from ganglion.wire.fields import ModelName, TokenId
from ganglion.wire.unknown_fields import refuse_unknown


class TemplateMessage(Struct, frozen=True):
    """One message; the chat wire reads it."""


_Messages = Annotated[list[TemplateMessage], Meta(min_length=1, max_length=16384)]


class TokenizeBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /tokenize`: exactly one of `prompt`, `messages` and `content`."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: _Messages | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /detokenize`."""

    model: ModelName | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=2**20)]


class TemplateBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /apply_template`: a chat, and whatever else `/v1/chat/completions` takes."""

    model: ModelName | None = None
    messages: _Messages


class TokenPiece(Struct, frozen=True):
    """A token and its text; where it is not whole characters, its bytes."""

    id: int
    piece: str | list[int]


class TokenizeAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens; llama-server's question has no count in its answer."""

    tokens: list[int | TokenPiece]
    count: int | None = None
    max_model_len: int | None = None
    token_strs: list[str] | None = None


class DetokenizeAnswer(Struct, frozen=True):
    """The text, under vLLM's name and under llama-server's."""

    prompt: str
    content: str


class TemplateAnswer(Struct, frozen=True):
    """The chat as the model reads it."""

    prompt: str


class TokenizerCard(Struct, frozen=True, kw_only=True):
    """Facts of a tokenizer, with the names of a tokenizer's own configuration file."""

    model: str
    tokenizer_class: str = "ganglion"
    vocab_size: int
    model_max_length: int
    chat_template: str
    bos_token: str
    eos_token: str
    bos_token_id: int | None
    eos_token_id: int | None
    end_token_ids: list[int]
    add_bos_token: bool


@dataclass(frozen=True, slots=True)
class TokenizeCall:
    """A parsed body: a text, or the body of a chat."""

    model: str | None
    text: str | None = None
    chat: bytes | None = None
    adds_special: bool = True
    has_pieces: bool = False
    is_counted: bool = True
    """Asked in vLLM's words."""


_tokenize = msgspec.json.Decoder(TokenizeBody)
_detokenize = msgspec.json.Decoder(DetokenizeBody)
_template = msgspec.json.Decoder(TemplateBody)
_encode = msgspec.json.Encoder().encode
_OWN = frozenset(TokenizeBody.__struct_fields__) - {"messages"}


def parse_tokenize(body: bytes, *, is_strict: bool) -> TokenizeCall:
    """Read a body of `/tokenize`."""
    fields = decode(_tokenize, body)
    given = [name for name in ("prompt", "messages", "content") if getattr(fields, name) is not None]
    if not given:
        raise MissingParameter("One of 'prompt', 'messages' and 'content' is required.", param="prompt")
    if len(given) > 1:
        raise InvalidValue(f"'{given[0]}' and '{given[1]}' are both given; give one.", param=given[1])
    if fields.parse_special is False:
        raise UnsupportedParameter("'parse_special' cannot be turned off.", param="parse_special")
    has_pieces = bool(fields.return_token_strs or fields.with_pieces)
    if fields.messages is not None:
        return TokenizeCall(fields.model, chat=_chat(body), has_pieces=has_pieces)
    refuse_unknown(body, TokenizeBody, is_strict=is_strict)
    if fields.content is not None:
        return TokenizeCall(
            fields.model,
            fields.content,
            adds_special=bool(fields.add_special),
            has_pieces=has_pieces,
            is_counted=False,
        )
    adds_special = fields.add_special_tokens is not False and fields.add_special is not False
    return TokenizeCall(fields.model, fields.prompt, adds_special=adds_special, has_pieces=has_pieces)


def parse_detokenize(body: bytes, *, is_strict: bool) -> tuple[str | None, tuple[int, ...]]:
    """Read a body of `/detokenize`: the model, if named, and the tokens."""
    fields = decode(_detokenize, body)
    refuse_unknown(body, DetokenizeBody, is_strict=is_strict)
    return fields.model, tuple(fields.tokens)


def parse_template(body: bytes) -> TokenizeCall:
    """Read a body of `/apply_template`."""
    return TokenizeCall(decode(_template, body).model, chat=_chat(body))


def _chat(body: bytes) -> bytes:
    """The fields of a body that the chat wire reads."""
    fields = decode(FIELDS, body)
    return _encode({name: value for name, value in fields.items() if name not in _OWN})


def tokenized(
    call: TokenizeCall, tokens: tuple[int, ...], pieces: tuple[bytes, ...], context_length: int
) -> bytes:
    """The answer of `/tokenize`; `pieces` are there when they were asked for."""
    if not call.is_counted:
        told: list[int | TokenPiece] = list(tokens)
        if call.has_pieces:
            told = [TokenPiece(token, _piece(piece)) for token, piece in zip(tokens, pieces, strict=True)]
        return _encode(TokenizeAnswer(tokens=told))
    strings = [piece.decode("utf-8", "replace") for piece in pieces] if call.has_pieces else None
    return _encode(
        TokenizeAnswer(
            tokens=list(tokens), count=len(tokens), max_model_len=context_length, token_strs=strings
        )
    )


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def detokenized(text: str) -> bytes:
    """The answer of `/detokenize`."""
    return _encode(DetokenizeAnswer(text, text))


def template(text: str) -> bytes:
    """The answer of `/apply_template`."""
    return _encode(TemplateAnswer(text))


def info(model: str, told: TokenizerInfo) -> bytes:
    """The answer of `/tokenizer_info`."""
    return _encode(
        TokenizerCard(
            model=model,
            vocab_size=told.vocabulary_size,
            model_max_length=told.context_length,
            chat_template=told.chat_template,
            bos_token=told.bos_token,
            eos_token=told.eos_token,
            bos_token_id=told.bos_id,
            eos_token_id=told.eos_id,
            end_token_ids=list(told.end_ids),
            add_bos_token=told.adds_bos,
        )
    )
