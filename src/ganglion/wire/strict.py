"""Fields that nobody knows: accepted, unless the operator wants them refused."""

import msgspec

from ganglion.core.errors import UnknownParameter
from ganglion.wire.decode import decode

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def refuse_unknown(body: bytes, shape: type[msgspec.Struct], *, is_strict: bool) -> None:
    """With `is_strict`, raise the UnknownParameter that names the first field that the shape lacks."""
    if not is_strict:
        return
    for name in decode(_fields, body):
        if name not in shape.__struct_encode_fields__:
            raise UnknownParameter(f"The parameter '{name[:64]}' is not known.", param=name[:64])
