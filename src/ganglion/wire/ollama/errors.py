"""Ollama's error format: `{"error": "message"}`, also as the last line of a stream that broke."""

import msgspec

from ganglion.core.errors import GanglionError, ModelNotFound
from ganglion.wire.error_format import ErrorFormat

_encode = msgspec.json.Encoder().encode


class OllamaError(msgspec.Struct, frozen=True):
    """Every failed response of the routes under `/api/`."""

    error: str


def encode_error(error: GanglionError) -> bytes:
    """The body of a failed response, and the line that ends a broken stream; the hint closes the message."""
    return _encode(OllamaError(_message(error)))


def _message(error: GanglionError) -> str:
    if isinstance(error, ModelNotFound):
        return f"model '{error.model}' not found"  # clients look for these words
    return error.full_message


ERRORS = ErrorFormat(
    encode=lambda error, _: encode_error(error),
    encode_event=lambda error, _: encode_error(error) + b"\n",
    keep_alive=None,
    has_codes=False,
)
