"""How another server is asked what a prompt is for its model, and what it answers.

Ours and vLLM's: `/tokenize` with `prompt` or `messages`, `/detokenize`, `/tokenizer_info`, `/apply_template`.
llama-server's: `/apply-template`, and `/tokenize` with `content`.
"""

import msgspec
from msgspec import Struct

from ganglion.core.engine import TokenizerInfo
from ganglion.core.errors import UpstreamUnavailable
from ganglion.wire.tokenizer import TokenizerCard


class _Tokens(Struct, frozen=True):
    tokens: list[int]


class _Text(Struct, frozen=True):
    prompt: str | None = None
    content: str | None = None


_tokens = msgspec.json.Decoder(_Tokens)
_text = msgspec.json.Decoder(_Text)
_card = msgspec.json.Decoder(TokenizerCard)
_encode = msgspec.json.Encoder().encode


def tokenize_text(model: str, text: str, *, adds_special: bool, is_ours: bool) -> bytes:
    """The body of `/tokenize` for a text: in our words and vLLM's, for a foreign one in llama-server's too.

    llama-server finds no text where there is only a `prompt`, and says that it has no tokens.
    """
    asked = {"model": model, "prompt": text, "add_special_tokens": adds_special}
    return _encode(asked if is_ours else {**asked, "content": text, "add_special": adds_special})


def tokenize_content(text: str) -> bytes:
    """The body of `/tokenize` for a prompt that is rendered, in llama-server's words."""
    return _encode({"content": text, "add_special": True, "parse_special": True})


def detokenize(model: str, tokens: tuple[int, ...]) -> bytes:
    """The body of `/detokenize`, in everybody's words."""
    return _encode({"model": model, "tokens": tokens})


def tokens_of(body: bytes) -> tuple[int, ...]:
    """The tokens of an answer of `/tokenize`; raises UpstreamUnavailable."""
    try:
        return tuple(_tokens.decode(body).tokens)
    except (msgspec.MsgspecError, UnicodeError):
        raise _strange("/tokenize") from None


def text_of(body: bytes) -> str:
    """The text of an answer of `/detokenize` or `/apply_template`; raises UpstreamUnavailable."""
    try:
        told = _text.decode(body)
    except (msgspec.MsgspecError, UnicodeError):
        raise _strange("/detokenize") from None
    text = told.prompt if told.prompt is not None else told.content
    if text is None:
        raise _strange("/detokenize")
    return text


def info_of(body: bytes) -> TokenizerInfo:
    """The tokenizer of an answer of `/tokenizer_info`; raises UpstreamUnavailable."""
    try:
        card = _card.decode(body)
    except (msgspec.MsgspecError, UnicodeError):
        raise _strange("/tokenizer_info") from None
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


def _strange(path: str) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"The server that holds this model answers {path} in no way that is known.")
