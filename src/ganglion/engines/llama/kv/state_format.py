"""A saved prefix as bytes: `prefix, header, cells`.

Law: what says something of itself is believed only after its checksums, the header's and then the cells', and
only where its fingerprint is ours: cells of another model or library do not fit.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np
import numpy.typing as npt

# The library writes the number of cells; for each its position, 1, and its slot; four words on how the
# cache is kept (whether values lie transposed, the layers, two sizes); then for each layer's keys, and for
# each layer's values, a type, the bytes of a row, and a row a cell. Law: the library trusts what it is
# given, so what comes from outside must be exactly of the shape that this worker's own library writes, and
# hold numbers only.

_CELL: Final = np.dtype([("position", "<i4"), ("slots", "<u4"), ("slot", "<i4")])
_COUNT: Final = struct.Struct("<I")
_CACHE: Final = struct.Struct("<IIII")
_ROWS: Final = struct.Struct("<iQ")
_MOST_LAYERS: Final = 4096
_EXPONENT: Final = 0x7C00
"""All bits of a half float's exponent: set, it is infinite or no number."""
_HALVES: Final = {1: 2, 2: 18, 8: 34}
"""By type, how many bytes lie between two half floats: all of f16, the scales of q4_0 and q8_0."""


@dataclass(frozen=True, slots=True)
class KvStateShape:
    """What all states of one cache have in common."""

    cache: bytes
    rows: tuple[tuple[int, int], ...]
    """The type and the bytes of a row of each block, keys first."""

    def size_bytes(self, count: int) -> int:
        """What so many cells take."""
        blocks = sum(_ROWS.size + count * size for _, size in self.rows)
        return _COUNT.size + count * _CELL.itemsize + _CACHE.size + blocks


def shape_of(cells: memoryview) -> KvStateShape | None:
    """The shape of a state of our own library; None where it writes otherwise than is known here."""
    try:
        (count,) = _COUNT.unpack_from(cells)
        at = _COUNT.size + count * _CELL.itemsize
        is_transposed, layers, *_ = _CACHE.unpack_from(cells, at)
        cache = bytes(cells[at : at + _CACHE.size])
        at += _CACHE.size
        rows = []
        for _ in range(2 * min(layers, _MOST_LAYERS)):
            kind, size = _ROWS.unpack_from(cells, at)
            rows.append((kind, size))
            at += _ROWS.size + count * size
    except (struct.error, OverflowError):
        return None
    is_known = not is_transposed and at == len(cells) and all(kind in _HALVES for kind, _ in rows)
    return KvStateShape(cache, tuple(rows)) if is_known else None


def first_cells(cells: memoryview, length: int) -> bytes | None:
    """The cells of the first positions, in their order; None where they are not all there."""
    shape = shape_of(cells)
    if shape is None:
        return None
    heads = _heads(cells)
    order = np.argsort(heads["position"], kind="stable")[:length]
    kept = heads[order]
    kept["slot"] = 0
    if not _are_in_order(kept, length):
        return None
    parts = [_COUNT.pack(length), kept.tobytes(), shape.cache]
    for (kind, size), rows in zip(shape.rows, _blocks(cells, shape), strict=True):
        parts += [_ROWS.pack(kind, size), rows[order].tobytes()]
    return b"".join(parts)


def are_sound(cells: memoryview, count: int, shape: KvStateShape) -> bool:
    """Whether these are so many cells of that shape, in order, and all of them numbers."""
    if len(cells) != shape.size_bytes(count) or _COUNT.unpack_from(cells)[0] != count:
        return False
    if shape_of(cells) != shape or not _are_in_order(_heads(cells), count):
        return False
    for (kind, _), rows in zip(shape.rows, _blocks(cells, shape), strict=True):
        halves = rows.reshape(-1, _HALVES[kind])[:, :2].copy().view("<u2")
        if ((halves & _EXPONENT) == _EXPONENT).any():
            return False
    return True


def _heads(cells: memoryview) -> npt.NDArray[np.void]:
    return np.frombuffer(cells, _CELL, _COUNT.unpack_from(cells)[0], _COUNT.size)


def _are_in_order(heads: npt.NDArray[np.void], count: int) -> bool:
    in_order = np.array_equal(heads["position"], np.arange(count))
    return in_order and bool((heads["slots"] == 1).all()) and not heads["slot"].any()


def _blocks(cells: memoryview, shape: KvStateShape) -> list[npt.NDArray[np.uint8]]:
    (count,) = _COUNT.unpack_from(cells)
    at = _COUNT.size + count * _CELL.itemsize + _CACHE.size
    found = []
    for _, size in shape.rows:
        at += _ROWS.size
        found.append(np.frombuffer(cells, np.uint8, count * size, at).reshape(count, size))
        at += count * size
    return found


_FINGERPRINT_BYTES: Final = 16
_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096
_PART_OF_MODEL: Final = re.compile(r"-00001-of-(\d{5})\.gguf$")


def kv_fingerprint(
    model: Path, library: Path, kv_type: str, gpu_layers: int, *, is_portable: bool = False
) -> bytes:
    """A name for everything that makes saved cells fit; a change of any of it gives another.

    A portable one is the same on every machine with the same files, whenever these were written there.
    """
    digest = blake2b(digest_size=_FINGERPRINT_BYTES)
    for path in (*_files_of(model), library):
        digest.update(_identity(path, is_portable=is_portable))
    digest.update(f"{kv_type} {gpu_layers}".encode())
    return digest.digest()


def _files_of(model: Path) -> tuple[Path, ...]:
    """All files of a model that comes in parts, given its first."""
    found = _PART_OF_MODEL.search(model.name)
    if found is None:
        return (model,)
    stem = model.name[: found.start()]
    count = int(found[1])
    return tuple(model.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))


def _identity(path: Path, *, is_portable: bool) -> bytes:
    """Size, time of change and samples of a file's content.

    Two trainings of one model differ in neither size nor header, and a copy may keep the time of what it
    replaces: so samples of the weights count too. Hashing all of them would cost as much as loading them.
    """
    status = path.stat()
    changed_ns = 0 if is_portable else status.st_mtime_ns
    digest = blake2b(f"{status.st_size} {changed_ns}".encode(), digest_size=32)
    with path.open("rb", buffering=0) as file:
        for number in range(_SAMPLES):
            file.seek(status.st_size * number // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()


FORMAT: Final = b"ganglion kv 1\n\0\0"
HEAD_PREFIX: Final = struct.Struct("<16sI32s")
"""The format, the header's length and its checksum."""
TOKEN: Final = np.dtype("<i4")
_MAX_HEADER_BYTES: Final = 16 * 2**20
"""Four bytes a token and a salt; a longer header is no header."""


class KvStateHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is said of some cells."""

    fingerprint: bytes
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


def head_of(fingerprint: bytes, salt: str, tokens: bytes, magic: int, cells: bytes | memoryview) -> bytes:
    """Prefix and header of some cells."""
    header = msgspec.msgpack.encode(
        KvStateHeader(fingerprint, salt, tokens, magic, len(cells), checksum_of(cells))
    )
    return HEAD_PREFIX.pack(FORMAT, len(header), checksum_of(header)) + header


def read_head(file: BinaryIO, size_bytes: int, fingerprint: bytes) -> tuple[KvStateHeader, int] | None:
    """What bytes of that size say of themselves and where their cells begin; None for what is not believed.

    The cells' own checksum is left to whoever reads them.
    """
    try:
        form, length, checksum = HEAD_PREFIX.unpack(file.read(HEAD_PREFIX.size))
        body = file.read(length) if form == FORMAT and length <= _MAX_HEADER_BYTES else b""
        if checksum_of(body) != checksum:
            return None
        header = msgspec.msgpack.decode(body, type=KvStateHeader)
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    start = HEAD_PREFIX.size + length
    is_whole = size_bytes == start + header.size_bytes and len(header.tokens) % TOKEN.itemsize == 0
    return (header, start) if is_whole and header.fingerprint == fingerprint else None
