"""Fields that nobody knows: accepted, unless the operator wants them refused."""

import msgspec

from ganglion.wire.decode import decode
from ganglion.wire.nested import fields_of, judged

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def refuse_unknown(body: bytes, shape: type[msgspec.Struct], *, is_strict: bool) -> None:
    """With `is_strict`, raise the UnknownParameter that names the first field that the shape lacks."""
    if not is_strict:
        return
    fields = decode(_fields, body)
    unknown = [name[:64] for name in fields if name not in shape.__struct_encode_fields__]
    judged(unknown, fields, fields_of(shape), is_strict=is_strict)
