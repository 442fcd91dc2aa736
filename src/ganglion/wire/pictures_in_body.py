"""Whether a body shows pictures, as a proxy asks it of every request; pure.

Reason for two steps: nearly no body has the words, looking for them is a thousand times cheaper than reading
it, and a body that has them may only speak of pictures.
"""

import msgspec
from msgspec import Raw, Struct

from ganglion.wire.token_bound import BoundedMessage, list_length, media_in_message


class _ShownFields(Struct):
    messages: list[BoundedMessage] | None = None
    input: str | list[str | BoundedMessage | list[int] | int] | None = None
    images: Raw = Raw()


_fields = msgspec.json.Decoder(_ShownFields)


def shows_pictures(body: bytes) -> bool:
    """Whether any message of a body holds a picture; what is no body of any wire shows none."""
    if b'"image' not in body and b'"input_image"' not in body:
        return False
    try:
        fields = _fields.decode(body)
        items = fields.input if isinstance(fields.input, list) else ()
        said = [*(fields.messages or ()), *(item for item in items if isinstance(item, BoundedMessage))]
        return list_length(fields.images) > 0 or any(map(media_in_message, said))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
