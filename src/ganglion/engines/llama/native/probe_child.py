"""The process behind `probe`: loads the library, prints one report and leaves."""

import os
import sys

import msgspec

from ganglion.core.errors import GanglionError, LoadFailed
from ganglion.engines.llama.native.library import Library, library_path, open_library
from ganglion.engines.llama.native.probe import LibraryRefusal, LibraryReport

# Beside what the workers use: needed here alone, and no reason to refuse a library for them.
MORE_DECLARATIONS = """
const char *llama_print_system_info(void);
"""


def main(arguments: list[str]) -> None:
    """Report on the library, and on the model file that the first argument names."""
    try:
        library = open_library()
        library.ffi.cdef(MORE_DECLARATIONS)
        report: LibraryReport | LibraryRefusal = LibraryReport(
            path=str(library_path()),
            system_info=library.ffi.string(library.lib.llama_print_system_info()).decode("utf-8", "replace"),
            can_offload=bool(library.lib.llama_supports_gpu_offload()),
            vocabulary=_vocabulary(library, arguments[0]) if arguments else None,
        )
    except GanglionError as error:
        report = LibraryRefusal(error.message, error.hint)
    sys.stdout.buffer.write(msgspec.json.encode(report))


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
    main(sys.argv[1:])
