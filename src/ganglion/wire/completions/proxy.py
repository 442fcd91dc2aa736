"""Completions as a proxy knows them."""

from msgspec import Raw

from ganglion.wire.completions.parse import DEFAULT_MAX_TOKENS
from ganglion.wire.proxy_dialect import (
    ABSENT,
    PROMPT_PREFIX_BYTES,
    Peeked,
    PeekedFields,
    ProxyDialect,
    ask_usage,
    body_reader,
)
from ganglion.wire.token_bound import (
    AnswerFields,
    TokenBound,
    bound_inputs,
    bound_reader,
    bound_with_answers,
)


class _CompletionFields(PeekedFields):
    prompt: Raw = ABSENT


class _CompletionBound(AnswerFields):
    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None


def _peek(fields: _CompletionFields) -> Peeked:
    return Peeked(
        fields.model or "",
        bool(fields.stream),
        fields.asks_usage,
        (bytes(fields.prompt)[:PROMPT_PREFIX_BYTES],) if fields.prompt else (),
    )


def _bound(fields: _CompletionBound, size: int) -> TokenBound:
    count, prompts = bound_inputs(fields.prompt, size)
    tokens = count + len((fields.suffix or "").encode(errors="surrogatepass"))
    return bound_with_answers(tokens, fields.most, prompts * fields.choices, DEFAULT_MAX_TOKENS)


PROXY = ProxyDialect(
    peek=body_reader(_CompletionFields, _peek),
    bound=bound_reader(_CompletionBound, _bound),
    ask_usage=ask_usage,
)
