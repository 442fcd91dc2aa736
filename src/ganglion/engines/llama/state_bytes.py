"""A saved prefix as bytes: `prefix, header, cells`.

Law: what says something of itself is believed only after its checksums, the header's and then the cells', and
only where its stamp is ours: cells of another model or library do not fit.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import BinaryIO, Final

import msgspec
import numpy as np

FORMAT: Final = b"ganglion kv 1\n\0\0"
PREFIX: Final = struct.Struct("<16sI32s")
"""The format, the header's length and its checksum."""
TOKEN: Final = np.dtype("<i4")
MAX_HEADER_BYTES: Final = 16 * 2**20
"""Four bytes a token and a salt; a longer header is no header."""


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is said of some cells."""

    stamp: bytes
    salt: str
    tokens: bytes
    magic: int
    size_bytes: int
    checksum: bytes

    def token_list(self) -> list[int]:
        """The tokens whose cells these are."""
        found: list[int] = np.frombuffer(self.tokens, TOKEN).tolist()
        return found


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Tokens as a header has them."""
    return np.asarray(tokens, TOKEN).tobytes()


def checksum_of(data: bytes | memoryview) -> bytes:
    """What tells that bytes are those that were written; no proof against whoever writes both."""
    return blake2b(data, digest_size=32).digest()


def head_of(stamp: bytes, salt: str, tokens: bytes, magic: int, cells: bytes | memoryview) -> bytes:
    """Prefix and header of some cells."""
    header = msgspec.msgpack.encode(Header(stamp, salt, tokens, magic, len(cells), checksum_of(cells)))
    return PREFIX.pack(FORMAT, len(header), checksum_of(header)) + header


def read_head(file: BinaryIO, size_bytes: int, stamp: bytes) -> tuple[Header, int] | None:
    """What bytes of that size say of themselves and where their cells begin; None for what is not believed.

    The cells' own checksum is left to whoever reads them.
    """
    try:
        form, length, checksum = PREFIX.unpack(file.read(PREFIX.size))
        body = file.read(length) if form == FORMAT and length <= MAX_HEADER_BYTES else b""
        if checksum_of(body) != checksum:
            return None
        header = msgspec.msgpack.decode(body, type=Header)
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    start = PREFIX.size + length
    is_whole = size_bytes == start + header.size_bytes and len(header.tokens) % TOKEN.itemsize == 0
    return (header, start) if is_whole and header.stamp == stamp else None
