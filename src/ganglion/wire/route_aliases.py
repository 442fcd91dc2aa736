"""Aliases of routes that clients try, and suggestions for paths that do not exist.

Law: an alias is its route in everything: the same handler, the same words for errors, the same key.
"""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

ALIASES: Final = MappingProxyType(
    {
        "/chat/completions": "/v1/chat/completions",
        "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
        "/completions": "/v1/completions",
        "/embeddings": "/v1/embeddings",
        "/rerank": "/v1/rerank",
        "/reranking": "/v1/rerank",
        "/v1/reranking": "/v1/rerank",
        "/v2/rerank": "/v1/rerank",
        "/apply-template": "/apply_template",
    }
)
"""Each with the route that it is."""

_ROOTS: Final = ("/responses", "/conversations", "/messages")
"""Where everything below is also found without its `/v1`."""

_OTHER_SERVERS: Final = MappingProxyType(
    {
        "/completion": "/v1/completions",
        "/infill": "/v1/completions, with 'suffix'",
        "/props": "/v1/models and /tokenizer_info",
        "/slots": "/health",
        "/generate": "/v1/completions",
        "/v1/engines": "/v1/models",
        "/api/generate_stream": "/api/generate",
        "/api/models": "/api/tags",
    }
)
"""Routes of other servers whose bodies are not ours, and what does the same here."""

_MAX_PATH: Final = 128
"""Longer paths are nobody's slip of the pen, and comparing takes time."""

# What base URLs get before the path that a client adds by itself.
_PREFIX: Final = re.compile(r"^(?:/(?:api|openai|v1))+(?=/)")


def canonical_path(path: str) -> str:
    """The route that a path means."""
    found = ALIASES.get(path)
    if found is not None:
        return found
    return f"/v1{path}" if path.startswith(_ROOTS) and _is_below(path) else path


def aliases_of(path: str) -> tuple[str, ...]:
    """The other names of a route."""
    bare = path.removeprefix("/v1")
    shortened = (bare,) if bare != path and bare.startswith(_ROOTS) and _is_below(bare) else ()
    return tuple(alias for alias, meant in ALIASES.items() if meant == path) + shortened


def suggested_path(path: str, known: Collection[str]) -> str | None:
    """The path that a client with an unknown one may have meant."""
    path = path.rstrip("/")
    if not path or len(path) > _MAX_PATH:
        return None
    if path in _OTHER_SERVERS:
        return _OTHER_SERVERS[path]
    for candidate in _without_prefix(path):
        if candidate in known:
            return candidate
    return next(iter(get_close_matches(path, known, n=1, cutoff=0.8)), None)


def _without_prefix(path: str) -> Iterable[str]:
    bare = _PREFIX.sub("", path)
    return (path, f"/v1{bare}", bare, f"/api{bare}")


def _is_below(path: str) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in _ROOTS)
