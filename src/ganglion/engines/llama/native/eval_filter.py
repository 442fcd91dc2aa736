"""Decides in native code which tensors of a graph Python is asked about.

The library asks about every node of every graph, a thousand a step, and each answer from Python costs what a
small product does. So the question goes to a few bytes of machine code, which say no unless somebody listens
and the tensor's name begins as it must, and else jump on to Python.

Law: machine code answers exactly as Python would. Where it cannot be had, Python answers everything.
"""

import ctypes
import mmap
import platform
import sys
from collections.abc import Callable
from typing import Any, Final

from ganglion.engines.llama.native.library import Library

_OnTensor = Callable[[bytes, Any, bool], bool]
"""A tensor's name, the tensor, and whether it is only asked for: then true wants it once it is computed."""

_PAGE_BYTES: Final = mmap.PAGESIZE
_NAME_LIMIT: Final = 4096
"""A tensor's name lies inside its struct, which is far smaller than this."""
_PREFIX_BYTES: Final = 8
"""What one comparison looks at."""
# The rooms of the table that the code reads, eight bytes each.
IS_ON, PYTHON, OFFSET, PREFIX, MASK = range(5)
_CODE: Final = bytes.fromhex(
    "f30f1efa"  # endbr64: where the processor tracks them, an indirect call may land here
    "48833a00"  # cmp qword [rdx + 8*IS_ON], 0
    "7412"  #     je no
    "488b4210"  # mov rax, [rdx + 8*OFFSET]
    "488b0407"  # mov rax, [rdi + rax]
    "48234220"  # and rax, [rdx + 8*MASK]
    "483b4218"  # cmp rax, [rdx + 8*PREFIX]
    "7403"  #     je yes
    "31c0c3"  #   no: return false
    "ff6208"  #   yes: jmp [rdx + 8*PYTHON]
)
"""x86-64 as System V calls it: the tensor in rdi, whether it is asked for in esi, the table in rdx."""


class EvalFilter:
    """Passes on the tensors of one context whose names begin with a prefix, while it is on."""

    def __init__(
        self, library: Library, prefix: bytes, on_tensor: _OnTensor, *, is_native: bool = True
    ) -> None:
        assert len(prefix) <= _PREFIX_BYTES
        self._ffi, self._lib = library.ffi, library.lib
        self._prefix = prefix
        self._on_tensor = on_tensor
        self._is_on = False
        self._is_learning = True
        self._offsets: set[int] = set()
        self.python_calls = 0
        """How often Python was asked."""
        self._python = self._ffi.callback("ggml_backend_sched_eval_callback", self._ask)
        # Until it is known where a name lies, the mask is empty and every tensor passes.
        self._table = self._ffi.new("uint64_t[5]")
        self._table[PYTHON] = int(self._ffi.cast("uintptr_t", self._python))
        self._page = _executable(_CODE) if is_native and _can_run_here() else None
        self.is_native = self._page is not None

    @property
    def hook(self) -> tuple[Any, Any]:
        """What a context calls, and with what; both must outlive it, and so must this."""
        if self._page is None:
            return self._python, self._table
        return self._ffi.cast("ggml_backend_sched_eval_callback", _address_of(self._page)), self._table

    @property
    def is_on(self) -> bool:
        """Whether anything passes."""
        return self._is_on

    @is_on.setter
    def is_on(self, is_on: bool) -> None:
        self._is_on = is_on
        self._table[IS_ON] = is_on

    def settle(self) -> None:
        """Leave the names to native code, given that all tensors so far had theirs in the same place."""
        self._is_learning = False
        if len(self._offsets) != 1:
            return
        (offset,) = self._offsets
        if 0 < offset < _NAME_LIMIT:
            self._table[OFFSET] = offset
            self._table[PREFIX] = int.from_bytes(self._prefix, "little")
            self._table[MASK] = (1 << 8 * len(self._prefix)) - 1

    def _ask(self, tensor: Any, is_asked: bool, _: Any) -> bool:
        self.python_calls += 1
        if not self._is_on:
            return False
        name_pointer = self._lib.ggml_get_name(tensor)
        if self._is_learning:
            cast = self._ffi.cast
            self._offsets.add(int(cast("uintptr_t", name_pointer)) - int(cast("uintptr_t", tensor)))
        name: bytes = self._ffi.string(name_pointer)
        return name.startswith(self._prefix) and self._on_tensor(name, tensor, is_asked)


def _can_run_here() -> bool:
    """Whether the code is this processor's and this system calls it as it expects."""
    is_known = platform.machine() in ("x86_64", "AMD64") and sys.maxsize > 2**32
    return is_known and sys.platform in ("linux", "darwin")


def _executable(code: bytes) -> mmap.mmap | None:
    """A page that holds the code, never writable and executable at once; None where that is forbidden."""
    page = mmap.mmap(-1, _PAGE_BYTES)
    page.write(code)
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    is_refused = protect(_address_of(page), _PAGE_BYTES, mmap.PROT_READ | mmap.PROT_EXEC) != 0
    return None if is_refused else page


def _address_of(page: mmap.mmap) -> int:
    """Where a page begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(page))
