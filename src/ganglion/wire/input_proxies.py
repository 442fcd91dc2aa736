"""Wires that only answer whole, as a proxy knows them: what their inputs can take at most.

Apart from the wires themselves, so that a node does not import what only a gateway needs.
"""

from msgspec import Raw, Struct

from ganglion.wire.proxy_dialect import ProxyDialect
from ganglion.wire.token_bound import PAIR_TOKENS, TokenBound, bound_inputs, bound_reader


class _Embeddings(Struct):
    input: str | list[str | int | list[int]] | None = None


class _Rerank(Struct):
    query: str = ""
    documents: list[Raw] | None = None


class _Score(Struct):
    prompt: str | list[int] | None = None


def _bound_rerank(fields: _Rerank, size: int) -> TokenBound:
    # Each document is read together with the query.
    pairs = len(fields.documents or ())
    return TokenBound(size + pairs * (len(fields.query.encode(errors="surrogatepass")) + PAIR_TOKENS))


EMBEDDINGS = ProxyDialect(
    bound=bound_reader(_Embeddings, lambda fields, size: TokenBound(bound_inputs(fields.input, size)[0]))
)
RERANK = ProxyDialect(bound=bound_reader(_Rerank, _bound_rerank))
SCORE = ProxyDialect(
    bound=bound_reader(
        _Score,
        lambda fields, size: TokenBound(len(fields.prompt) if isinstance(fields.prompt, list) else size),
    )
)
