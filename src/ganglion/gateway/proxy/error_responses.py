"""What the gateway itself says on each wire: how requests fail, and that they are still waited for."""

import msgspec

from ganglion.core.errors import GanglionError, InvalidApiKey
from ganglion.gateway.proxy.routes import ErrorFormat
from ganglion.gateway.upstream.upstream_connection import Headers
from ganglion.wire import messages, openai_errors
from ganglion.wire.frame import Comment, Frame, sse
from ganglion.wire.ollama import errors as ollama_errors
from ganglion.wire.responses import errors as responses_errors

_encode = msgspec.json.Encoder().encode


def error_response(words: ErrorFormat, error: GanglionError, request_id: str) -> tuple[int, bytes]:
    """The status and body of a response that is nothing but an error."""
    match words:
        case "messages":
            return messages.status_of(error), messages.encode_error(error, request_id)
        case "ollama":
            return error.status, ollama_errors.encode_error(error)
        case "responses":
            return error.status, responses_errors.encode_error(error)
        case "openai":
            return error.status, openai_errors.encode_error(error)


def error_headers(error: GanglionError) -> Headers:
    """The headers that go with it."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if isinstance(error, InvalidApiKey):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def error_event(words: ErrorFormat, error: GanglionError, request_id: str) -> bytes:
    """What ends a stream that broke; nothing else may follow it."""
    match words:
        case "messages":
            return sse(Frame(messages.encode_error(error, request_id), "error"))
        case "ollama":
            return ollama_errors.encode_error(error) + b"\n"
        case "responses":
            told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
            return sse(Frame(_encode(told), "error"))
        case "openai":
            return sse(Frame(openai_errors.encode_error(error)))


def keep_alive_event(words: ErrorFormat) -> bytes:
    """What tells a client that its stream is still waited for, between two events or before the first."""
    return b'event: ping\ndata: {"type":"ping"}\n\n' if words == "messages" else sse(Comment())
