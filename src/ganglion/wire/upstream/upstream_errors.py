"""Decodes errors of other servers, from an HTTP response or inside a stream, into ours.

The shapes: OpenAI's `{"error": {"message", "type", "param", "code"}}`; llama-server's, whose `code` is the
status and which adds `n_prompt_tokens` and `n_ctx`; vLLM's, also as `{"object": "error", "message", …}`;
Ollama's `{"error": "text"}`. Our own nodes' codes come back as the errors that they were.

Law: what is wrong between the gateway and a server (a key, a route) is never told as the client's own doing.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from ganglion.core.errors import (
    BodyTooLarge,
    ContextLengthExceeded,
    ConversationNotFound,
    DeadlineExceeded,
    ExceedsLimit,
    Extra,
    GanglionError,
    HeadersTooLarge,
    InsufficientMemory,
    InvalidApiKey,
    InvalidValue,
    ItemNotFound,
    MethodNotAllowed,
    ModelLoading,
    ModelMismatch,
    ModelNotFound,
    NotAllowed,
    OnlyHolder,
    Overloaded,
    RateLimited,
    RequestTimeout,
    ResponseNotFound,
    RouteNotFound,
    ServerError,
    SessionBusy,
    SessionDrift,
    SessionNotFound,
    UnknownTransferCoding,
    UnsupportedMediaType,
    UpstreamRefused,
    UpstreamUnavailable,
    class_of,
    error_classes,
    rebuild,
)
from ganglion.wire.decode import FIELDS

_MAX_MESSAGE = 2000
"""Characters of another server's message that are passed on."""
_MAX_RETRY_S = 300

_Headers = Iterable[tuple[bytes, bytes]]

_NOT_THE_CLIENTS: Final = frozenset(
    kind.code
    for denied in (
        *(InvalidApiKey, NotAllowed, RateLimited, ExceedsLimit),  # of the key that the gateway showed
        *(RouteNotFound, MethodNotAllowed, OnlyHolder),  # of where it asked
        *(UnsupportedMediaType, BodyTooLarge, HeadersTooLarge, UnknownTransferCoding, RequestTimeout),
        *(ResponseNotFound, ConversationNotFound, ItemNotFound),  # of what the gateway itself stores
        *(SessionNotFound, SessionDrift, SessionBusy, ModelMismatch),
    )
    for kind in error_classes(denied)
) | {ServerError.code}
"""Codes that say something of the gateway's call and not of the client's: their status alone is passed on."""
_OVERFLOW_CODES = ("context_length_exceeded", "exceed_context_size_error")
_OVERFLOW = re.compile(
    r"maximum context length|maximum model length|exceed\w* the (?:available |model'?s? )?context|"
    r"context (?:size|length|window) (?:is |was )?exceeded|prompt is too long",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"(?:maximum (?:context|model) length (?:is|of)|n_ctx = |context size of|> )\s*(\d{1,9})", re.I
)
_PROMPT_TOKENS = re.compile(
    r"(\d{1,9}) in the messages|resulted in (\d{1,9}) tokens|prompt \(length (\d{1,9})\)|"
    r"at least (\d{1,9}) input tokens|(?:passed|contains|has) (\d{1,9}) (?:input )?tokens|"
    r"request \((\d{1,9}) tokens\)",
    re.I,
)
_REQUESTED = re.compile(r"requested (\d{1,9}) tokens", re.I)
"""Of prompt and answer together: only where nothing tells the prompt alone."""

_ANSWER_TOO_LONG = re.compile(r"max_(?:completion_)?tokens'? .*too large|in the completion", re.I)
_UNKNOWN_MODEL = re.compile(r"model ['\"`].*['\"`] (?:was )?(?:not found|does not exist)", re.I)


class UpstreamErrorBody(Struct, frozen=True):
    """The error of another server, whatever its shape was."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None
    prompt_len: int | None = None
    max: int | None = None
    free_mb: int | None = None
    required_mb: int | None = None
    deadline: str | None = None


_error_body = msgspec.json.Decoder(UpstreamErrorBody)
_text = msgspec.json.Decoder(str)


def decode_error_response(status: int, headers: _Headers, body: bytes, *, model: str = "") -> GanglionError:
    """The error that an answer other than 200 is; `model` is what was asked for."""
    error = _error_from_body(_read(body), status, model=model)
    if error.retry_after_s is not None:
        error.retry_after_s = _retry_after_s(headers) or error.retry_after_s
    return error


def decode_error_frame(data: bytes, *, model: str = "") -> GanglionError:
    """The error that a frame of a stream is."""
    body = _read(data)
    code = body.code
    return _error_from_body(body, code if isinstance(code, int) and 400 <= code < 600 else 500, model=model)


def _error_from_body(body: UpstreamErrorBody, status: int, *, model: str = "") -> GanglionError:
    """Another server's error as one of ours."""
    message = body.message.strip()[:_MAX_MESSAGE]
    if 300 <= status < 400:
        # Where it points to is an address that no client should see.
        return UpstreamRefused(
            "The server that holds this model answered with a redirect.",
            hint="The operator must check the address of that node.",
        )
    if status in (401, 402, 403, 407) or body.code == "invalid_api_key":
        # Its words may hold part of the key that the gateway showed.
        return UpstreamRefused(
            f"The server that holds this model refused the gateway's key ({status}).",
            hint="The operator must check the key of that node.",
        )
    code = body.code if isinstance(body.code, str) else ""
    if _is_overflow(body, code):
        return _overflow(body, message)
    if (
        code == ModelNotFound.code
        or (not code and status == 404)
        or (status in (400, 404) and _UNKNOWN_MODEL.search(message))
    ):
        return ModelNotFound(model)
    kind = None if code in _NOT_THE_CLIENTS else class_of(code)
    if kind is None:
        return _by_status(status, message, body.param)
    return rebuild(kind, message or code, param=body.param, extras=_extras(body, kind))


def _extras(body: UpstreamErrorBody, kind: type[GanglionError]) -> dict[str, Extra]:
    if issubclass(kind, InsufficientMemory):
        return {"free_mb": body.free_mb or 0, "required_mb": body.required_mb or 0}
    return {"deadline": body.deadline or "node"} if issubclass(kind, DeadlineExceeded) else {}


def _by_status(status: int, message: str, param: str | None) -> GanglionError:
    if status in (429, 529):
        return Overloaded(message or "The server that holds this model is overloaded.")
    if status == 503:
        kind = ModelLoading if "loading" in message.lower() else Overloaded
        return kind(message or "The server that holds this model cannot answer now.")
    if status in (400, 409, 413, 422):
        return InvalidValue(message or f"The server that holds this model answered {status}.", param=param)
    said = f": {message}" if message else "."
    if status >= 500 or status == 408:
        return UpstreamUnavailable(f"The server that holds this model answered {status}{said}")
    return UpstreamRefused(f"The server that holds this model answered {status}{said}")


def _is_overflow(body: UpstreamErrorBody, code: str) -> bool:
    if code in _OVERFLOW_CODES or body.type in _OVERFLOW_CODES:
        return True
    if _OVERFLOW.search(body.message) is None:
        return False
    # vLLM says it of answers too that would be longer than what the prompt leaves.
    prompt_tokens, limit = _prompt_tokens(body), _limit(body)
    is_answer = _ANSWER_TOO_LONG.search(body.message) is not None
    return not is_answer or prompt_tokens is None or limit is None or prompt_tokens >= limit


def _overflow(body: UpstreamErrorBody, message: str) -> ContextLengthExceeded:
    limit = _limit(body) or 0
    prompt_tokens = max(_prompt_tokens(body) or 0, limit + 1)
    error = ContextLengthExceeded(prompt_tokens, limit)
    if not limit:
        error.message = f"The prompt is too long for this model. {message}".rstrip()
    return error


def _limit(body: UpstreamErrorBody) -> int | None:
    return _first(body.n_ctx, body.max) or _number(_LIMIT, body.message)


def _prompt_tokens(body: UpstreamErrorBody) -> int | None:
    return (
        _first(body.n_prompt_tokens, body.prompt_len)
        or _number(_PROMPT_TOKENS, body.message)
        or _number(_REQUESTED, body.message)
    )


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return None if found is None else int(next(group for group in found.groups() if group is not None))


def _read(body: bytes) -> UpstreamErrorBody:
    """An error in any of the shapes; a body of another shape says nothing."""
    try:
        fields = FIELDS.decode(body)
        inner = fields.get("error")
        if inner is None:
            return _error_body.decode(body)
        if bytes(inner).startswith(b'"'):
            return UpstreamErrorBody(_text.decode(inner))
        return _error_body.decode(inner)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return UpstreamErrorBody()


def _retry_after_s(headers: _Headers) -> int | None:
    for name, value in headers:
        if name == b"retry-after" and value.isdigit():
            return min(max(int(value[:9]), 1), _MAX_RETRY_S)
    return None
