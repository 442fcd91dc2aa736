"""The bytes of a GGUF header: metadata and tensor places, without touching a weight.

Law: nothing is allocated or looped over because the file asked for it. Every count and length is held against
the bytes that are left, and arrays stay where they lie until someone reads one of bounded size.

The file is read through a window and never mapped: another program may cut it short at any moment, which a
mapping answers with SIGBUS and a read with fewer bytes.
"""

import re
import struct
from dataclasses import dataclass
from io import FileIO
from reprlib import repr as shortened
from struct import Struct
from typing import Final

_MAGIC: Final = int.from_bytes(b"GGUF", "little")
_VERSIONS: Final = (2, 3)
_ALIGNMENT_DEFAULT: Final = 32
# The largest files seen hold a few hundred keys and 20,000 tensors, and vocabulary plus merges reach 800,000
# strings: beyond these a file is malformed, and walking it would only take time.
_KEYS_LIMIT: Final = 1 << 16
_TENSORS_LIMIT: Final = 1 << 16
_STRINGS_LIMIT: Final = 2_000_000
_KEY_BYTES_LIMIT: Final = 1 << 16
_BLOCK_NAME: Final = re.compile(rb"blk\.(\d{1,5})\.")
# Longer text (an embedded tokenizer.json) is left where it lies, as an array of bytes.
_TEXT_BYTES_LIMIT: Final = 1 << 20
_ARRAY_LIMIT: Final = 1 << 16
_WINDOW_BYTES: Final = 1 << 18
# Where a value was jumped over, what follows may be the last that is wanted there.
_GLANCE_BYTES: Final = 1 << 12
# Vocabularies of 260,000 words make headers of 15 MB; a file that leads further only takes time.
_READ_LIMIT: Final = 64 << 20
# ggml counts elements in 63 bits, and llama.cpp refuses what overflows them.
_ELEMENTS_LIMIT: Final = (1 << 63) - 1

_UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9
_SCALARS: Final = {
    0: Struct("<B"),
    1: Struct("<b"),
    2: Struct("<H"),
    3: Struct("<h"),
    4: Struct("<I"),
    5: Struct("<i"),
    6: Struct("<f"),
    7: Struct("<B"),
    10: Struct("<Q"),
    11: Struct("<q"),
    12: Struct("<d"),
}
_length_at = Struct("<Q").unpack_from
_uint32_at = Struct("<I").unpack_from

# Elements and bytes of one block, by ggml type. A type that is not here only has its offset checked.
_BLOCKS: Final = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
}


class MalformedGguf(Exception):
    """The header is damaged; the message says what was found."""


class NotGguf(MalformedGguf):
    """The file is of another kind."""


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array that was not read: its element type, length and place in the file."""

    kind: int
    count: int
    offset: int


_Scalar = bool | int | float | str
_Value = _Scalar | GgufArray
Metadata = dict[str, _Value]


@dataclass(frozen=True, slots=True)
class GgufFileHeader:
    """The header of a file, and the offset where the last weight ends."""

    version: int
    metadata: Metadata
    tensor_count: int
    parameters: int
    end: int
    block_bytes: dict[int, int]
    """The bytes of the weights whose name gives them to a layer."""


class GgufReader:
    """Walks one unbuffered file of a known size; every step is bounds-checked and raises Malformed."""

    def __init__(self, file: FileIO, size: int) -> None:
        self._file = file
        self._size = size
        self._offset = 0
        self._window = b""
        self._window_offset = 0
        self._bytes_read = 0
        self._strings = 0

    def header(self) -> GgufFileHeader:
        """Read everything before the weights."""
        version, tensor_count, key_count = self._preamble()
        metadata = self._metadata(key_count)
        alignment = metadata.get("general.alignment", _ALIGNMENT_DEFAULT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise MalformedGguf(f"general.alignment is {shortened(alignment)}, expected a power of two")
        block_bytes: dict[int, int] = {}
        parameters, weight_bytes = self._tensors(tensor_count, block_bytes)
        start = -(-self._offset // alignment) * alignment
        return GgufFileHeader(version, metadata, tensor_count, parameters, start + weight_bytes, block_bytes)

    def strings(self, array: GgufArray, indices: frozenset[int]) -> dict[int, str]:
        """The strings at these indices of an array that `header()` walked over."""
        found: dict[int, str] = {}
        if array.kind != _STRING:
            return found
        self._offset = array.offset
        index = 0
        for wanted in sorted(index for index in indices if 0 <= index < array.count):
            self._skip_strings(wanted - index)
            text = self._text(_TEXT_BYTES_LIMIT)
            if isinstance(text, str):
                found[wanted] = text
            index = wanted + 1
        return found

    def numbers(self, array: GgufArray) -> tuple[int | float, ...]:
        """The elements of a numeric array of bounded length."""
        scalar = _SCALARS.get(array.kind)
        if scalar is None or array.count > _ARRAY_LIMIT:
            raise MalformedGguf(f"expected a short array of numbers, found {array.count} elements")
        self._offset = array.offset
        size = array.count * scalar.size
        at = self._take(size)
        return tuple(value for (value,) in scalar.iter_unpack(self._window[at : at + size]))

    def _preamble(self) -> tuple[int, int, int]:
        if self._size < 4 or self._uint32() != _MAGIC:
            raise NotGguf("it does not begin with the letters GGUF")
        version = self._uint32()
        if version not in _VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
                raise MalformedGguf("it is written for big-endian machines")
            raise MalformedGguf(f"its GGUF version is {version}, expected 2 or 3")
        tensor_count = self._count("tensors", smallest_bytes=32, limit=_TENSORS_LIMIT)
        key_count = self._count("metadata keys", smallest_bytes=13, limit=_KEYS_LIMIT)
        return version, tensor_count, key_count

    def _metadata(self, key_count: int) -> Metadata:
        metadata: Metadata = {}
        for _ in range(key_count):
            key = self._text(_KEY_BYTES_LIMIT)
            if not isinstance(key, str):
                raise MalformedGguf(f"a metadata key of {key.count} bytes")
            if key in metadata:
                raise MalformedGguf(f"the metadata key {shortened(key)} stands there twice")
            metadata[key] = self._value(self._uint32())
        return metadata

    def _value(self, kind: int) -> _Value:
        if kind == _STRING:
            return self._text(_TEXT_BYTES_LIMIT)
        if kind == _ARRAY:
            return self._array()
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise MalformedGguf(f"metadata of the unknown type {kind}")
        at = self._take(scalar.size)
        value: int | float = scalar.unpack_from(self._window, at)[0]
        return bool(value) if kind == _BOOL else value

    def _array(self) -> GgufArray:
        kind = self._uint32()
        if kind == _STRING:
            count = self._count("strings", smallest_bytes=8, limit=_STRINGS_LIMIT - self._strings)
            self._strings += count
            offset = self._offset
            self._skip_strings(count)
            return GgufArray(kind, count, offset)
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise MalformedGguf(f"an array of the unknown type {kind}")
        count = self._count("elements", smallest_bytes=scalar.size, limit=self._size)
        return GgufArray(kind, count, self._skip(count * scalar.size))

    def _skip_strings(self, count: int) -> None:
        # The one hot loop: a vocabulary and its merges are a hundred thousand strings or more.
        left = count
        while left:
            at = self._take(8)
            window = self._window
            done = 0
            try:
                for done in range(left):  # noqa: B007 - read when the window ends
                    at += 8 + _length_at(window, at)[0]
                left = 0
            except (struct.error, OverflowError):
                left -= done  # the rest lies beyond the window
            self._offset = self._window_offset + at
            if self._offset > self._size:
                raise MalformedGguf("it ends inside an array of strings")

    def _text(self, limit: int) -> str | GgufArray:
        length = self._count("bytes of text", smallest_bytes=1, limit=self._size)
        if length > limit:
            return GgufArray(0, length, self._skip(length))
        at = self._take(length)
        return self._window[at : at + length].decode(errors="replace")

    def _tensors(self, tensor_count: int, block_bytes: dict[int, int]) -> tuple[int, int]:
        """How many elements all tensors have, and where the last ends, counted from the first's start.

        What belongs to a layer is added up in `block_bytes`.
        """
        parameters = end = 0
        for _ in range(tensor_count):
            elements, tensor_end = self._tensor(block_bytes)
            parameters += elements
            end = max(end, tensor_end)
        if parameters > _ELEMENTS_LIMIT:
            raise MalformedGguf(f"it announces {parameters} weights")
        return parameters, end

    def _tensor(self, block_bytes: dict[int, int]) -> tuple[int, int]:
        name_bytes = self._count("bytes of a tensor's name", smallest_bytes=1, limit=_KEY_BYTES_LIMIT)
        at = self._take(name_bytes)
        block = _BLOCK_NAME.match(self._window, at, at + name_bytes)
        dimensions = self._uint32()
        if dimensions > 4:
            raise MalformedGguf(f"a tensor of {dimensions} dimensions")
        elements = 1
        for _ in range(dimensions):
            elements *= self._uint64()
        quant_elements, quant_bytes = _BLOCKS.get(self._uint32(), (1, 0))
        offset = self._uint64()
        size = elements // quant_elements * quant_bytes
        if block is not None:
            number = int(block[1])
            block_bytes[number] = block_bytes.get(number, 0) + size
        return elements, offset + size

    def _count(self, what: str, *, smallest_bytes: int, limit: int) -> int:
        count = self._uint64()
        if count > limit or count * smallest_bytes > self._size - self._offset:
            raise MalformedGguf(
                f"it announces {count} {what}, more than its {self._size - self._offset} bytes hold"
            )
        return count

    def _uint32(self) -> int:
        at = self._take(4)
        return int(_uint32_at(self._window, at)[0])

    def _uint64(self) -> int:
        at = self._take(8)
        return int(_length_at(self._window, at)[0])

    def _skip(self, size: int) -> int:
        """Step over `size` bytes, and return where in the file they began."""
        offset = self._offset
        if size > self._size - offset:
            raise MalformedGguf("it ends inside its header")
        self._offset = offset + size
        return offset

    def _take(self, size: int) -> int:
        """Step over `size` bytes, at most a text's, and return where in the window they now lie."""
        at = self._skip(size) - self._window_offset
        if at < 0 or at + size > len(self._window):
            self._look(self._window_offset + at, size)
            return 0
        return at

    def _look(self, offset: int, size: int) -> None:
        is_next = 0 <= offset + size - self._window_offset - len(self._window) <= _GLANCE_BYTES
        wanted = max(size, _WINDOW_BYTES if is_next else _GLANCE_BYTES)
        self._bytes_read += wanted
        if self._bytes_read > _READ_LIMIT:
            raise MalformedGguf(f"its header goes on beyond {_READ_LIMIT >> 20} MiB")
        self._file.seek(offset)
        self._window, self._window_offset = self._file.read(wanted), offset
        if len(self._window) < size:
            raise MalformedGguf("it became shorter while it was read")
