"""The table of wires: a new one is a folder beside this file and a row here."""

from collections.abc import Callable
from typing import Final

from ganglion.wire import openai_errors
from ganglion.wire.dialect import Dialect, Wire, WireRoute
from ganglion.wire.error_format import ErrorFormat

DIALECTS: Final = (
    Dialect(
        "chat",
        "ganglion.wire.chat",
        (WireRoute("/v1/chat/completions", generates=True),),
        is_usual=True,
    ),
    Dialect(
        "completions",
        "ganglion.wire.completions",
        (WireRoute("/v1/completions", generates=True),),
        is_usual=True,
    ),
    Dialect(
        "responses",
        "ganglion.wire.responses",
        (
            WireRoute("/v1/responses", generates=True, is_stored=True, may_outlast=True),
            WireRoute("/v1/responses/compact", generates=True, is_stored=True),
            WireRoute("/v1/responses/input_tokens", is_stored=True, runs_model=False),
        ),
        prefix="/v1/responses",
        is_translatable=True,
    ),
    Dialect(
        "messages",
        "ganglion.wire.messages",
        (WireRoute("/v1/messages", generates=True),),
        prefix="/v1/messages",
        client_header="anthropic-version",
        passed_headers=("anthropic-version", "anthropic-beta"),
        is_translatable=True,
    ),
    Dialect(
        "embeddings",
        "ganglion.wire.embeddings",
        (WireRoute("/v1/embeddings"),),
        is_folder=False,
        proxy_at="ganglion.wire.input_proxies:EMBEDDINGS",
        is_usual=True,
    ),
    Dialect(
        "rerank",
        "ganglion.wire.rerank",
        (WireRoute("/v1/rerank"),),
        is_folder=False,
        proxy_at="ganglion.wire.input_proxies:RERANK",
        is_translatable=True,
    ),
    Dialect(
        "score",
        "ganglion.wire.score",
        (WireRoute("/v1/score"),),
        is_folder=False,
        proxy_at="ganglion.wire.input_proxies:SCORE",
    ),
    Dialect(
        "ollama",
        "ganglion.wire.ollama",
        (
            WireRoute("/api/chat", generates=True),
            WireRoute("/api/generate", generates=True),
            WireRoute("/api/embed"),
            WireRoute("/api/embeddings"),
            *(
                WireRoute(f"/api/{verb}", method, access="admin")
                for verb in ("pull", "push", "create", "copy", "delete")
                for method in ("POST", "DELETE")
            ),
        ),
        prefix="/api/",
        is_translatable=True,
    ),
    # Tokenizing, templates and counting: the paths of several wires, and the capability of one model.
    Dialect(
        "prompt",
        "ganglion.wire.tokenizer",
        (
            *(
                WireRoute(path, runs_model=False)
                for path in (
                    "/tokenize",
                    "/detokenize",
                    "/apply_template",
                    "/v1/chat/completions/input_tokens",
                    "/v1/messages/count_tokens",
                )
            ),
            WireRoute("/tokenizer_info", "GET", runs_model=False),
            WireRoute("/v1/readout/manifest", "GET", runs_model=False),
        ),
        is_folder=False,
        proxy_at="ganglion.wire.proxy_dialect:PLAIN",
        is_translatable=True,
    ),
    Dialect("sessions", "ganglion.wire.salience"),
)

ALL_WIRES: Final[frozenset[Wire]] = frozenset(dialect.name for dialect in DIALECTS)
USUAL_WIRES: Final[frozenset[Wire]] = frozenset(dialect.name for dialect in DIALECTS if dialect.is_usual)
"""What a foreign server is taken to speak unless its declaration says otherwise."""
TRANSLATABLE_WIRES: Final[frozenset[Wire]] = frozenset(
    dialect.name for dialect in DIALECTS if dialect.is_translatable
)
TRANSLATION_WIRE: Final = "chat"
"""The wire that calls of others are translated into."""
EMBEDDINGS_WIRE: Final = "embeddings"
PROMPT_WIRE: Final = "prompt"
RERANK_WIRE: Final = "rerank"
SESSIONS_WIRE: Final = "sessions"
PUBLIC_PATHS: Final = ("/", "/docs", "/health/live", "/health/ready")
"""What answers GET and HEAD without a key, on nodes and gateways."""

_BY_PREFIX: Final = tuple((each.prefix, each) for each in DIALECTS if each.prefix is not None)
_BY_HEADER: Final = tuple((each.client_header, each) for each in DIALECTS if each.client_header is not None)


def _shows_none(_: str) -> bool:
    return False


def dialect_of_path(path: str, has_header: Callable[[str], bool] = _shows_none) -> Dialect | None:
    """The dialect in whose format a path fails; None for OpenAI's.

    Where a path belongs to no wire, a client that shows the header of one is told errors in its format.
    """
    for prefix, dialect in _BY_PREFIX:
        if path.startswith(prefix):
            return dialect
    for header, dialect in _BY_HEADER:
        if has_header(header):
            return dialect
    return None


def error_format_of(path: str, has_header: Callable[[str], bool] = _shows_none) -> ErrorFormat:
    """How a request for this path is told that it failed."""
    dialect = dialect_of_path(path, has_header)
    return openai_errors.ERRORS if dialect is None else dialect.errors
