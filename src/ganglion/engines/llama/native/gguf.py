"""The header of a GGUF file, read and written by the library itself."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from ganglion.core.errors import LoadFailed
from ganglion.engines.llama.native.library import Library

_STRING: Final = 8
"""The library's number for a value that is text."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as the header describes it; `offset` counts from where the weights begin."""

    name: str
    kind: int
    shape: tuple[int, int, int, int]
    """As the library counts: the length of a row first."""
    offset: int
    size_bytes: int


class GgufHeader:
    """What stands before the weights; changes move the offsets of what follows."""

    def __init__(self, library: Library, pointer: Any, arena: Any) -> None:
        self._ffi, self._lib = library.ffi, library.lib
        self._pointer, self._arena = pointer, arena

    def tensors(self) -> list[GgufTensor]:
        """All of them, in the order in which their data follows."""
        return [self._tensor(number) for number in range(self._lib.gguf_get_n_tensors(self._pointer))]

    def _tensor(self, number: int) -> GgufTensor:
        lib, pointer = self._lib, self._pointer
        shape = lib.gguf_get_tensor_ne(pointer, number)
        return GgufTensor(
            name=self._ffi.string(lib.gguf_get_tensor_name(pointer, number)).decode("utf-8", "replace"),
            kind=lib.gguf_get_tensor_type(pointer, number),
            shape=(shape[0], shape[1], shape[2], shape[3]),
            offset=lib.gguf_get_tensor_offset(pointer, number),
            size_bytes=lib.gguf_get_tensor_size(pointer, number),
        )

    @property
    def data_offset(self) -> int:
        """Where the weights began in the file that this was read from."""
        offset: int = self._lib.gguf_get_data_offset(self._pointer)
        return offset

    def has(self, key: str) -> bool:
        """Whether the metadata has a value under a key."""
        return bool(self._lib.gguf_find_key(self._pointer, key.encode()) >= 0)

    def text(self, key: str) -> str:
        """What the metadata says under a key, which must hold text."""
        number = self._lib.gguf_find_key(self._pointer, key.encode())
        if number < 0 or self._lib.gguf_get_kv_type(self._pointer, number) != _STRING:
            raise LoadFailed(f"The file has no value for {key}.", hint="It may be damaged.")
        text: bytes = self._ffi.string(self._lib.gguf_get_val_str(self._pointer, number))
        return text.decode("utf-8", "replace")

    def set_text(self, key: str, value: str) -> None:
        """Write a value into the metadata."""
        self._lib.gguf_set_val_str(self._pointer, key.encode(), value.encode())

    def set_number(self, key: str, value: float) -> None:
        """Write a value into the metadata."""
        self._lib.gguf_set_val_f32(self._pointer, key.encode(), value)

    def set_kind(self, name: str, kind: int) -> None:
        """Announce a tensor in another form."""
        self._lib.gguf_set_tensor_type(self._pointer, name.encode(), kind)

    def add(self, name: str, kind: int, width: int, height: int) -> None:
        """Announce one tensor more."""
        tensor = self._lib.ggml_new_tensor_2d(self._arena, kind, width, height)
        self._lib.ggml_set_name(tensor, name.encode())
        self._lib.gguf_add_tensor(self._pointer, tensor)

    def to_bytes(self) -> bytes:
        """The header as it stands in a file, up to where the weights begin."""
        size = self._lib.gguf_get_meta_size(self._pointer)
        data = self._ffi.new("char[]", size)
        self._lib.gguf_get_meta_data(self._pointer, data)
        return bytes(self._ffi.buffer(data, size))


@contextmanager
def read_header(library: Library, path: str) -> Iterator[GgufHeader]:
    """The header of a file."""
    params = library.ffi.new("struct gguf_init_params *", {"no_alloc": True})
    pointer = library.lib.gguf_init_from_file(os.fsencode(path), params[0])
    if pointer == library.ffi.NULL:
        raise LoadFailed(f"{path} could not be read: {library.last_error()}", hint="The file may be damaged.")
    try:
        yield GgufHeader(library, pointer, library.ffi.NULL)
    finally:
        library.lib.gguf_free(pointer)


@contextmanager
def new_header(library: Library, tensors: int) -> Iterator[GgufHeader]:
    """An empty header with room for so many tensors."""
    size = tensors * library.lib.ggml_tensor_overhead()
    params = library.ffi.new("struct ggml_init_params *", {"mem_size": size, "no_alloc": True})
    arena = library.lib.ggml_init(params[0])
    pointer = library.lib.gguf_init_empty()
    try:
        if library.ffi.NULL in (arena, pointer):
            raise LoadFailed("There is no memory left to load a model with.")
        yield GgufHeader(library, pointer, arena)
    finally:
        library.lib.gguf_free(pointer)
        library.lib.ggml_free(arena)
