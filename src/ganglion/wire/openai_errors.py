"""OpenAI's error format: `{"error": {"message", "type", "param", "code", …extras}}`."""

import msgspec

from ganglion.core.errors import GanglionError
from ganglion.wire.error_format import ErrorFormat
from ganglion.wire.frame import Frame, sse

_encode = msgspec.json.Encoder().encode


class ErrorDetail(msgspec.Struct, frozen=True):
    """The error; some codes add fields of their own beside these."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """Every failed response of every route."""

    error: ErrorDetail


def encode_error(error: GanglionError, *, param: str | None = None) -> bytes:
    """The body of a failed response, and the data of an error frame; the hint closes the message.

    `param` is for a wire on which the field that is meant has another name.
    """
    named = {
        "message": error.full_message,
        "type": error.type,
        "param": param or error.param,
        "code": error.code,
    }
    return _encode({"error": error.extras | named})


ERRORS = ErrorFormat(
    encode=lambda error, _: encode_error(error), encode_event=lambda error, _: sse(Frame(encode_error(error)))
)
