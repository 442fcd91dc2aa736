"""Messages from WebSocket clients: `{"type": "response.create", …}` around the fields of a body."""

from dataclasses import dataclass

import msgspec

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.wire.decode import FIELDS, decode


class _Continued(msgspec.Struct, frozen=True):
    previous_response_id: str | None = None


_continued = msgspec.json.Decoder(_Continued)
_NULL = msgspec.Raw(b"null")
_CREATE = b'"response.create"'
_OF_HTTP = ("stream", "stream_options")
"""A socket always streams."""


@dataclass(frozen=True, slots=True)
class SocketCreate:
    """A response that a message asks for; one that is not generated is only there to be continued."""

    body: bytes
    is_generated: bool


def previous_response_id_of(message: bytes) -> str | None:
    """The response that a message names to continue; None where it names none, or cannot be read."""
    try:
        return _continued.decode(message).previous_response_id
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def parse_message(message: bytes) -> SocketCreate:
    """Read a message, or raise the InvalidRequest that names what is wrong with it."""
    fields = decode(FIELDS, message)
    kind = bytes(fields.pop("type", _NULL))
    if kind != _CREATE:
        raise InvalidValue(
            f"'type' is {kind[:64].decode(errors='replace')}; expected {_CREATE.decode()}.", param="type"
        )
    if bytes(fields.pop("stream_id", _NULL)) != b"null":
        raise UnsupportedParameter(
            "A connection is one stream here.", param="stream_id", hint="Leave it out."
        )
    generate = bytes(fields.pop("generate", _NULL))
    if generate not in (b"null", b"true", b"false"):
        raise InvalidValue("'generate' is true or false.", param="generate")
    for name in _OF_HTTP:
        fields.pop(name, None)
    return SocketCreate(msgspec.json.encode(fields), generate != b"false")
