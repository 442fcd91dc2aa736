"""Which call is which: who may make it, in which words it is refused, and whether a node answers it."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

from msgspec import Struct

from ganglion.core.errors import InvalidRequest
from ganglion.gateway.fleet.node import Wire
from ganglion.wire.responses.compaction import SUMMARY_TOKENS
from ganglion.wire.route_aliases import canonical_path

ErrorFormat = Literal["openai", "responses", "messages", "ollama"]
"""How a wire tells errors."""
Access = Literal["public", "key", "node", "admin"]

_SHORT_BYTES = 128
_SAFE_IN_PATH = "/:@!$&'()*+,;=~-._"


@dataclass(frozen=True, slots=True)
class ProxyRoute:
    """One call of the gateway."""

    label: str
    """What metrics and the log call it: bounded, unlike paths."""
    words: ErrorFormat = "openai"
    access: Access = "key"
    wire: Wire | None = None
    """What routing is asked for; None where no model answers."""
    is_desk: bool = True
    """Only the desk answers it, whatever the nodes can do."""
    generates: bool = False
    """Whether an answer is as long as the client lets it be."""
    answer_tokens: int | None = None
    """What an answer is at most, where its client has no say in that."""
    may_outlast: bool = False
    """Whether an answer may run on after its request, and is then counted at the desk."""


class RequestTarget(Struct, frozen=True, gc=False):
    """What a request line asks for."""

    path: bytes
    """Decoded, as the table has it."""
    query: bytes
    """As it came, without its question mark."""
    encoded: bytes
    """The path as it goes upstream: read there in the one way in which it was judged here."""


def parse_target(url: bytes) -> RequestTarget:
    """The path and query of a request line; raises InvalidRequest."""
    return _parsed(url) if len(url) <= _SHORT_BYTES else _parse(url)


def _parse(url: bytes) -> RequestTarget:
    if not url.startswith(b"/"):
        scheme, _, rest = url.partition(b"://")
        if scheme.lower() not in (b"http", b"https"):
            raise InvalidRequest("The request line names no path.")
        url = b"/" + rest.partition(b"/")[2]
    if b"#" in url:
        raise InvalidRequest("The request line holds a fragment.")
    path, _, query = url.partition(b"?")
    is_quoted = b"%" in path
    path = _canonical(unquote_to_bytes(path) if is_quoted else path)
    return RequestTarget(path, query, quote_from_bytes(path, _SAFE_IN_PATH).encode() if is_quoted else path)


def _canonical(path: bytes) -> bytes:
    """The route that a path means: an upstream may know one name of it only."""
    return canonical_path(path.decode()).encode() if path.isascii() else path


_parsed = lru_cache(maxsize=512)(_parse)
"""Nearly every request line is one of a few."""


def _model(wire: Wire, words: ErrorFormat = "openai", *, generates: bool = False) -> ProxyRoute:
    return ProxyRoute(wire, words, wire=wire, is_desk=False, generates=generates)


_RESPONSES = ProxyRoute("responses", "responses", wire="responses", generates=True, may_outlast=True)
_COMPACTED = ProxyRoute(
    "responses", "responses", wire="responses", generates=True, answer_tokens=SUMMARY_TOKENS
)
_COUNTED = ProxyRoute("responses", "responses", wire="responses")
_PUBLIC = ProxyRoute("page", access="public")
_ADMIN = ProxyRoute("admin", access="admin")
_NODE = ProxyRoute("admin", access="node")
_OLLAMA_ADMIN = ProxyRoute("admin", "ollama", access="admin")

_TABLE: dict[tuple[bytes, bytes], ProxyRoute] = {
    (b"POST", b"/v1/chat/completions"): _model("chat", generates=True),
    (b"POST", b"/v1/completions"): _model("completions", generates=True),
    (b"POST", b"/v1/embeddings"): _model("embeddings"),
    (b"POST", b"/v1/rerank"): _model("rerank"),
    (b"POST", b"/v1/score"): _model("score"),
    (b"POST", b"/v1/messages"): _model("messages", "messages", generates=True),
    (b"POST", b"/v1/messages/count_tokens"): _model("prompt", "messages"),
    (b"POST", b"/v1/chat/completions/input_tokens"): _model("prompt"),
    (b"POST", b"/tokenize"): _model("prompt"),
    (b"POST", b"/detokenize"): _model("prompt"),
    (b"POST", b"/apply_template"): _model("prompt"),
    (b"GET", b"/tokenizer_info"): _model("prompt"),
    (b"GET", b"/v1/readout/manifest"): _model("prompt"),
    (b"POST", b"/api/chat"): _model("ollama", "ollama", generates=True),
    (b"POST", b"/api/generate"): _model("ollama", "ollama", generates=True),
    (b"POST", b"/api/embed"): _model("ollama", "ollama"),
    (b"POST", b"/api/embeddings"): _model("ollama", "ollama"),
    (b"POST", b"/v1/responses"): _RESPONSES,
    (b"POST", b"/v1/responses/compact"): _COMPACTED,
    (b"POST", b"/v1/responses/input_tokens"): _COUNTED,
    (b"POST", b"/fleet/join"): _NODE,
    (b"POST", b"/fleet/leave"): _NODE,
    **{
        (method, path): _PUBLIC
        for method in (b"GET", b"HEAD")
        for path in (b"/", b"/docs", b"/health/live", b"/health/ready")
    },
    **{
        (method, path): _OLLAMA_ADMIN
        for method in (b"POST", b"DELETE")
        for path in (b"/api/pull", b"/api/push", b"/api/create", b"/api/copy", b"/api/delete")
    },
}

_ADMIN_ROOTS = (b"/fleet", b"/models", b"/metrics", b"/discovery")
_BY_PREFIX: tuple[tuple[bytes, ProxyRoute], ...] = (
    (b"/v1/responses", ProxyRoute("responses", "responses")),
    (b"/v1/messages", ProxyRoute("other", "messages")),
    (b"/api/", ProxyRoute("other", "ollama")),
)
_OTHER = ProxyRoute("other")
_ANTHROPIC = ProxyRoute("other", "messages")


def route_of(method: bytes, path: bytes, *, is_anthropic: bool = False) -> ProxyRoute:
    """What a call is; whatever the table does not know is the desk's to answer or refuse.

    Where a path belongs to no wire, a client of Anthropic's is told errors in its own words.
    """
    found = _TABLE.get((method, path))
    if found is not None:
        return found
    # By prefix and not by segment: `/fleetwide` is nobody's, and refused either way.
    if path.startswith(_ADMIN_ROOTS):
        return _ADMIN
    for prefix, route in _BY_PREFIX:
        if path.startswith(prefix):
            return route
    return _ANTHROPIC if is_anthropic else _OTHER
