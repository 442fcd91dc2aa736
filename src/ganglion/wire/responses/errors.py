"""The error format of Responses: OpenAI's envelope, with the names of this wire's fields."""

import msgspec

from ganglion.core.errors import GanglionError, UnsupportedParameter
from ganglion.wire import openai_errors
from ganglion.wire.error_format import ErrorFormat
from ganglion.wire.frame import Frame, sse

_encode = msgspec.json.Encoder().encode


def _encode_error(error: GanglionError) -> bytes:
    """The body of a failed response."""
    # An engine speaks of messages, which are `input` here; a client that wrote `messages` is told of those.
    if error.param == "messages" and not isinstance(error, UnsupportedParameter):
        return openai_errors.encode_error(error, param="input")
    return openai_errors.encode_error(error)


def encode_socket_error(error: GanglionError) -> bytes:
    """An error as a message of a socket."""
    return b'{"type":"error","status":%d,%b' % (error.status, _encode_error(error)[1:])


def _error_event(error: GanglionError, _: str) -> bytes:
    fields = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return sse(Frame(_encode(fields), "error"))


ERRORS = ErrorFormat(encode=lambda error, _: _encode_error(error), encode_event=_error_event)
