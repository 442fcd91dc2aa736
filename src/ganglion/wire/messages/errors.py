"""The error format of Messages: `{"type": "error", "error": {"type", "message"}, "request_id"}`.

Where an SDK acts on the kind of a refusal, `error` has `details.error_code` as well.
"""

import re
from typing import Literal

import msgspec

from ganglion.core.errors import ContextLengthExceeded, GanglionError, Overloaded, UnsupportedParameter
from ganglion.wire.error_format import ErrorFormat
from ganglion.wire.frame import Frame, sse

_encode = msgspec.json.Encoder().encode
_PLACE = re.compile(r"\[(\d+)\]")
_OVERLOADED = 529
_DETAIL = "error_code"

_MessagesErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
]

_TYPES: dict[int, _MessagesErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}


class MessagesErrorCode(msgspec.Struct, frozen=True):
    """The code that Anthropic's SDKs act on without reading the message."""

    error_code: str


class MessagesErrorDetail(msgspec.Struct, frozen=True):
    type: _MessagesErrorType
    message: str
    details: MessagesErrorCode | msgspec.UnsetType = msgspec.UNSET


class MessagesError(msgspec.Struct, frozen=True, kw_only=True):
    """Every failed response of this wire, and the data of its `error` event."""

    type: Literal["error"] = "error"
    error: MessagesErrorDetail
    request_id: str


def status_of(error: GanglionError) -> int:
    """The HTTP status; a server that is full has one of its own here."""
    return _OVERLOADED if isinstance(error, Overloaded) else error.status


def encode_error(error: GanglionError, request_id: str) -> bytes:
    """The body of a failed response, and the data of an error event."""
    detail = MessagesErrorDetail(_type(error), _message(error), _details(error))
    return _encode(MessagesError(error=detail, request_id=request_id))


def thread_unsupported() -> UnsupportedParameter:
    """A conversation that the server should keep: the SDKs then send it whole, and go on so."""
    return UnsupportedParameter(
        "The parameter 'thread' is not supported.",
        param="thread",
        hint="Send the whole conversation without it.",
        extras={_DETAIL: "thread_unsupported_request"},
    )


def _details(error: GanglionError) -> MessagesErrorCode | msgspec.UnsetType:
    code = error.extras.get(_DETAIL)
    return MessagesErrorCode(code) if isinstance(code, str) else msgspec.UNSET


def _type(error: GanglionError) -> _MessagesErrorType:
    known = _TYPES.get(status_of(error))
    if known is not None:
        return known
    return "invalid_request_error" if error.type == "invalid_request_error" else "api_error"


def _message(error: GanglionError) -> str:
    if isinstance(error, ContextLengthExceeded):
        # Claude Code reads both numbers from this very sentence to decide what to leave out.
        return f"prompt is too long: {error.extras['prompt_len']} tokens > {error.extras['max']} maximum"
    message = error.full_message
    if error.param is None:
        return message
    place = _PLACE.sub(r".\1", error.param)
    return message.replace(error.param, place) if error.param in message else f"{place}: {message}"


ERRORS = ErrorFormat(
    encode=encode_error,
    encode_event=lambda error, request_id: sse(Frame(encode_error(error, request_id), "error")),
    status_of=status_of,
    keep_alive=b'event: ping\ndata: {"type":"ping"}\n\n',
    has_codes=False,
)
