"""The header of a safetensors file: its tensors' types and places, without touching a weight.

Law: nothing is allocated because the file asked for it. The header's length is held against the file and a
limit before it is read, and every tensor's place against its shape and the file's end.
"""

import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

# The format allows headers of 100 MB. Published files keep theirs under 3 MB, and decoding takes memory and
# time in proportion: beyond these a file is not what it says.
_HEADER_LIMIT: Final = 10 << 20
_TENSORS_LIMIT: Final = 1 << 16
_DIMENSIONS_LIMIT: Final = 16
_LENGTH_BYTES: Final = 8

_TYPE_BITS: Final = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C64": 64,
}


class MalformedSafetensors(Exception):
    """The file is damaged or of another kind; the message says what was found."""


@dataclass(frozen=True, slots=True)
class WeightsHeader:
    """The contents of one file by type and size."""

    size_bytes: int
    modified_s: int
    parameters: int
    bytes_by_type: dict[str, int]


_Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Tensor(Struct, frozen=True, gc=False):
    # The defaults are for `__metadata__`, which stands among the tensors and has other keys.
    dtype: str = ""
    shape: tuple[_Size, ...] = ()
    data_offsets: tuple[_Size, _Size] = (0, 0)


_decode_tensors = msgspec.json.Decoder(dict[str, _Tensor]).decode


def read_weights(path: Path) -> WeightsHeader:
    """Read one file's header; raises Malformed, or OSError as it comes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise MalformedSafetensors(f"{path.name} is not a regular file")
    with path.open("rb", buffering=0) as file:
        length_bytes = file.read(_LENGTH_BYTES)
        if len(length_bytes) < _LENGTH_BYTES:
            raise MalformedSafetensors(f"{path.name} ends inside its header")
        length = int.from_bytes(length_bytes, "little")
        if length > status.st_size - _LENGTH_BYTES:
            raise MalformedSafetensors(
                f"{path.name} announces a header of {length} bytes, more than its {status.st_size} bytes hold"
            )
        if length > _HEADER_LIMIT:
            raise MalformedSafetensors(f"{path.name} has a header of {length >> 20} MiB")
        header = file.read(length)
    return _weights(path.name, status, header)


def _weights(name: str, status: os.stat_result, header: bytes) -> WeightsHeader:
    tensors = _tensors(name, header)
    if not tensors:
        raise MalformedSafetensors(f"{name} holds no weights")
    parameters, end = 0, 0
    bytes_by_type: dict[str, int] = {}
    for tensor in sorted(tensors, key=lambda tensor: tensor.data_offsets):
        start, stop = tensor.data_offsets
        elements, size_bytes = _extent(name, tensor)
        if start != end or stop != start + size_bytes:
            raise MalformedSafetensors(
                f"{name} has a tensor at bytes {start} to {stop}, expected {end} to {end + size_bytes}"
            )
        end = stop
        parameters += elements
        bytes_by_type[tensor.dtype] = bytes_by_type.get(tensor.dtype, 0) + size_bytes
    expected = _LENGTH_BYTES + len(header) + end
    if expected != status.st_size:
        raise MalformedSafetensors(f"{name} has {status.st_size} bytes, its header says {expected}")
    return WeightsHeader(status.st_size, int(status.st_mtime), parameters, bytes_by_type)


def _tensors(name: str, header: bytes) -> list[_Tensor]:
    if not header.startswith(b"{"):
        raise MalformedSafetensors(f"{name} has no safetensors header")
    # Counted before anything is made of them: each tensor opens one brace.
    if header.count(b"{") > _TENSORS_LIMIT:
        raise MalformedSafetensors(f"{name} announces more than {_TENSORS_LIMIT} tensors")
    try:
        entries = _decode_tensors(header)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedSafetensors(f"{name} has a damaged header: {error}") from error
    entries.pop("__metadata__", None)
    return list(entries.values())


def _extent(name: str, tensor: _Tensor) -> tuple[int, int]:
    """Elements and bytes of a tensor, by its shape and type."""
    bits = _TYPE_BITS.get(tensor.dtype)
    if bits is None:
        raise MalformedSafetensors(f"{name} has a tensor of the unknown type {tensor.dtype[:32]!r}")
    if len(tensor.shape) > _DIMENSIONS_LIMIT:
        raise MalformedSafetensors(f"{name} has a tensor of {len(tensor.shape)} dimensions")
    elements = math.prod(tensor.shape)
    return elements, elements * bits // 8
