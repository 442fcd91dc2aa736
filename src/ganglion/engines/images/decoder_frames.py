"""The frames between the server and its image decoder, in msgpack.

Apart from the child, so that the server does not load what only the child needs.
"""

import msgspec


class DecodeRequest(msgspec.Struct, frozen=True, array_like=True):
    """One file to decode; `kind` is what its first bytes say it is."""

    kind: str
    data: bytes


class DecodedImage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A picture: rows from the top, three bytes a pixel, upright and on white."""

    width: int
    height: int
    rgb: bytes


class DecodeRefusal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Why there is no picture, in words for the client."""

    message: str
    hint: str | None = None


DecodeReply = DecodedImage | DecodeRefusal
