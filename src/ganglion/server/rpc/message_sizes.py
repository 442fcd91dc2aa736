"""How large a message of each method may be, judged by its bytes before it is decoded.

A decoded message can take thirty times the memory of its bytes: an empty repeated message is two bytes and
an object. So the bytes are bounded by what a method can need, and the number of fields by what one can mean.
"""

from typing import Final

from ganglion.core.errors import InvalidValue
from ganglion.wire.salience import salience_pb2 as pb

KIBIBYTE: Final = 2**10
SMALL: Final = 16 * KIBIBYTE
"""Names, ids and numbers."""
LARGEST: Final = 4 * 2**20 + 64 * KIBIBYTE
"""A million tokens, or four mebibytes of text, of an image or of a saved session, as gRPC has it by default,
and what stands around them. No message of any method is received beyond it."""
SIZES: Final = {
    "OpenSession": 64 * KIBIBYTE,  # a few steers with their layers
    "Generate": LARGEST,
    "AppendImage": LARGEST,
    "RestoreSession": LARGEST,
    "RenderMessages": LARGEST,
    "Tokenize": LARGEST,
    "Detokenize": LARGEST,
}
"""By the method's name; those that are not here take small messages."""
MAX_FIELDS: Final = 8192
"""Of a message and those in it, each element of a repeated one counted; a list of numbers is one field."""

NESTED: Final = {
    method.name: frozenset(field.number for field in method.input_type.fields if field.message_type)
    for method in pb.DESCRIPTOR.services_by_name["Salience"].methods
}
"""The numbers of the fields that are messages themselves, by the method's name."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_size(method: str, data: bytes) -> None:
    """Raise InvalidValue for a message larger than its method can need; `method` is its whole path."""
    name = method.rpartition("/")[2]
    most = SIZES.get(name, SMALL)
    if len(data) > most:
        raise InvalidValue(f"Expected a message of at most {most} bytes, found {len(data)}.")
    if len(data) > SMALL and not has_few_fields(data, NESTED.get(name, frozenset())):
        raise InvalidValue(f"The message has more than {MAX_FIELDS} fields.", hint="Send lists packed.")


def has_few_fields(data: bytes, nested: frozenset[int] = frozenset()) -> bool:
    """Whether a message has few fields, as far as its bytes can be followed; the decoder judges the rest.

    The fields of the messages that stand under the numbers `nested` count with its own.
    """
    at, size, inner_end = 0, len(data), 0
    for _ in range(MAX_FIELDS):
        if at >= size:
            return True
        is_inside = at < inner_end
        key, at = _varint(data, at)
        match key & 7:
            case kind if kind == _VARINT:
                _, at = _varint(data, at)
            case kind if kind == _BYTES:
                length, at = _varint(data, at)
                if not is_inside and key >> 3 in nested:
                    inner_end = at + length
                else:
                    at += length
            case kind if kind == _FIXED64:
                at += 8
            case kind if kind == _FIXED32:
                at += 4
            case _:
                pass  # a group begins or ends, and its fields count with the others
    return at >= size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at
