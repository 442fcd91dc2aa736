"""The child process behind `probe`: it loads the library and answers with one report."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ganglion.core.errors import GanglionError, LoadFailed
from ganglion.engines.child_main import serve
from ganglion.engines.llama.native.accelerators import library_devices
from ganglion.engines.llama.native.library import Library, library_path, open_library
from ganglion.engines.llama.native.probe import (
    LibraryQuestion,
    LibraryRefusal,
    LibraryReport,
)

# Beside what the workers use: needed here alone, and no reason to refuse a library for them.
_MORE_DECLARATIONS = """
const char *llama_print_system_info(void);
"""


def _answer(body: bytes) -> Iterator[bytes]:
    """A report on the library, and on a model file where one is named."""
    question = msgspec.json.decode(body, type=LibraryQuestion)
    try:
        path = library_path() if question.library is None else Path(question.library)
        library = open_library(path)
        library.ffi.cdef(_MORE_DECLARATIONS, override=True)
        report: LibraryReport | LibraryRefusal = LibraryReport(
            path=str(path),
            system_info=_text(library, library.lib.llama_print_system_info()),
            can_offload=bool(library.lib.llama_supports_gpu_offload()),
            vocabulary=None if question.model is None else _vocabulary(library, question.model),
            devices=library_devices(library),
        )
    except GanglionError as error:
        report = LibraryRefusal(error.message, error.hint)
    yield msgspec.json.encode(report)


def _text(library: Library, pointer: Any) -> str:
    return str(library.ffi.string(pointer).decode("utf-8", "replace"))


def _vocabulary(library: Library, path: str) -> int:
    """Read a model's header and vocabulary, and none of its weights."""
    params = library.lib.llama_model_default_params()
    params.vocab_only = True
    model = library.lib.llama_model_load_from_file(os.fsencode(path), params)
    if model == library.ffi.NULL:
        raise LoadFailed(f"{path} could not be loaded: {library.last_error()}")
    tokens = int(library.lib.llama_vocab_n_tokens(library.lib.llama_model_get_vocab(model)))
    library.lib.llama_model_free(model)
    return tokens


if __name__ == "__main__":
    serve(lambda _: _answer)
