"""Free-form JSON inside a body: read only once its size is known."""

from typing import Any

import msgspec

from ganglion.core.errors import InvalidValue
from ganglion.wire.decode import decode

_object: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


def read_object(raw: msgspec.Raw, path: str, max_bytes: int) -> dict[str, Any]:
    """The object, or the InvalidRequest that says what is wrong with it."""
    found = bytes(raw)
    if len(found) > max_bytes:
        raise InvalidValue(f"'{path}' is larger than {max_bytes} bytes.", param=path)
    if not found.startswith(b"{"):
        raise InvalidValue(f"'{path}' must be an object.", param=path)
    return decode(_object, found)
