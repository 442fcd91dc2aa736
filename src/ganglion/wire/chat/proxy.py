"""Chat completions as a proxy knows them."""

from msgspec import Raw

from ganglion.wire.proxy_dialect import Peeked, PeekedFields, ProxyDialect, ask_usage, body_reader, opening
from ganglion.wire.token_bound import bound_chat


class _ChatFields(PeekedFields):
    messages: list[Raw] | None = None
    prompt_cache_key: str | None = None


def _peek(fields: _ChatFields) -> Peeked:
    return Peeked(
        fields.model or "",
        bool(fields.stream),
        fields.asks_usage,
        (fields.prompt_cache_key,) if fields.prompt_cache_key else opening(fields.messages),
    )


PROXY = ProxyDialect(peek=body_reader(_ChatFields, _peek), bound=bound_chat, ask_usage=ask_usage)
