"""The child process behind `probe`: it loads the library and answers with one report."""

import os
from collections.abc import Iterator

import msgspec

from ganglion.core.errors import GanglionError, LoadFailed
from ganglion.engines.child_main import serve
from ganglion.engines.llama.native.accelerators import accelerators
from ganglion.engines.llama.native.library import Library, library_path, open_library
from ganglion.engines.llama.native.probe import LibraryRefusal, LibraryReport

# Beside what the workers use: needed here alone, and no reason to refuse a library for them.
_MORE_DECLARATIONS = """
const char *llama_print_system_info(void);
"""


def _answer(path: bytes) -> Iterator[bytes]:
    """A report on the library, and on a model file where one is named."""
    try:
        library = open_library()
        library.ffi.cdef(_MORE_DECLARATIONS)
        report: LibraryReport | LibraryRefusal = LibraryReport(
            path=str(library_path()),
            system_info=library.ffi.string(library.lib.llama_print_system_info()).decode("utf-8", "replace"),
            can_offload=bool(library.lib.llama_supports_gpu_offload()),
            vocabulary=_vocabulary(library, path.decode()) if path else None,
            devices=accelerators(library),
        )
    except GanglionError as error:
        report = LibraryRefusal(error.message, error.hint)
    yield msgspec.json.encode(report)


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
