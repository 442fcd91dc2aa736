"""The process behind `read_residuals`: has the model, runs one text after the other, and leaves.

`python -m ganglion.engines.llama.residuals_child` reads one `ReadAll` from stdin and writes frames to stdout.

The library computes a layer for all rows of a batch, except the last one: from there on only rows whose
logits are wanted go on. So the last layer is none of those that can be read.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue, LoadFailed
from ganglion.engines.llama.library import Library, NativeModel, open_library
from ganglion.engines.llama.residual_frames import (
    LARGEST_TEXT_TOKENS,
    LENGTH_BYTES,
    Frame,
    Opened,
    Pool,
    ReadAll,
    Refused,
    Residual,
    framed,
)

# Beside what the workers use, as in probe_child.
MORE_DECLARATIONS: Final = """
const char *ggml_get_name(const void *tensor);
size_t ggml_nbytes(const void *tensor);
void ggml_backend_tensor_get(const void *tensor, void *data, size_t offset, size_t size);
"""
STREAM: Final = re.compile(rb"l_out-(\d{1,4})")
"""The residual stream after a layer, as all of llama.cpp's models call it."""

Floats = npt.NDArray[np.float32]


class _Watch:
    """Copies the residual stream while a batch runs: after each wanted layer, `[tokens, hidden]`."""

    def __init__(self, library: Library, layers: Sequence[int], hidden_size: int) -> None:
        self._ffi, self._lib = library.ffi, library.lib
        self._wanted = frozenset(layers)
        self._hidden_size = hidden_size
        self.seen: dict[int, Floats] = {}
        self.callback: Any = self._ffi.callback(
            "ggml_backend_sched_eval_callback", self._on_tensor, error=False
        )

    def _on_tensor(self, tensor: Any, is_asking: bool, _: Any) -> bool:
        match = STREAM.fullmatch(self._ffi.string(self._lib.ggml_get_name(tensor)))
        layer = int(match[1]) if match is not None else -1
        if is_asking or layer not in self._wanted:
            return layer in self._wanted
        values = np.empty(self._lib.ggml_nbytes(tensor) // 4, np.float32)
        pointer = self._ffi.cast("void *", values.ctypes.data)
        self._lib.ggml_backend_tensor_get(tensor, pointer, 0, values.nbytes)
        self.seen[layer] = values.reshape(-1, self._hidden_size)
        return True


def main() -> None:
    """Answer one question."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    ask = msgspec.msgpack.decode(source.read(int.from_bytes(source.read(LENGTH_BYTES), "big")), type=ReadAll)
    try:
        for frame in _told(ask):
            sink.write(framed(frame))
            sink.flush()
    except BrokenPipeError:
        # The parent is gone; an ordinary exit would flush stdout and complain about it on stderr.
        os._exit(0)


def _told(ask: ReadAll) -> Iterator[Frame]:
    try:
        yield from _read(ask)
    except GanglionError as error:
        yield Refused(error.code, error.message, error.hint)


def _read(ask: ReadAll) -> Iterator[Frame]:
    library = open_library()
    library.ffi.cdef(MORE_DECLARATIONS)
    model = library.load_model(ask.path, gpu_layers=ask.gpu_layers)
    opened = _opened(model, ask)
    watch = _Watch(library, opened.layers, opened.hidden_size)
    context = model.new_context(
        cells=LARGEST_TEXT_TOKENS,
        slots=1,
        is_unified=True,
        batch=LARGEST_TEXT_TOKENS,
        threads=ask.threads,
        kv_type="f16",
        flash_attention=None,
        callback=watch.callback,
    )
    yield opened
    for text in ask.texts:
        tokens = _tokens(model, text)
        watch.seen.clear()
        context.decode([(0, 0, tokens[:LARGEST_TEXT_TOKENS], True)])
        context.trim(0, 0)
        values = np.stack([_pooled(watch.seen.get(layer), layer, ask.pool) for layer in opened.layers])
        yield Residual(values.tobytes(), len(tokens), len(tokens) > LARGEST_TEXT_TOKENS)


def _opened(model: NativeModel, ask: ReadAll) -> Opened:
    architecture = model.metadata("general.architecture") or ""
    hidden_size, block_count = (
        _whole(ask.path, key, model.metadata(f"{architecture}.{key}"))
        for key in ("embedding_length", "block_count")
    )
    readable = range(block_count - 1)
    layers = list(readable) if ask.layers is None else ask.layers
    if not layers or any(layer not in readable for layer in layers):
        raise InvalidValue(
            f"The model has {block_count} layers, of which 0 to {block_count - 2} can be read; "
            f"asked for {', '.join(map(str, layers)) or 'none'}.",
            param="layers",
            hint="--layers auto chooses four of them.",
        )
    return Opened(architecture, hidden_size, block_count, layers)


def _whole(path: str, key: str, text: str | None) -> int:
    if text is None or not text.isdecimal() or int(text) < 1:
        raise LoadFailed(f"{path} does not say its {key}: {text!r}.")
    return int(text)


def _tokens(model: NativeModel, text: str) -> list[int]:
    """A text behind the sign that begins texts, where the vocabulary has one.

    The first position takes no part: a model leaves attention there that it has no use for, and the residual
    grows to several times any other's, late in the model to fifty times, whatever the text says.
    """
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    begin = model.signs().bos
    return tokens if begin is None else [begin, *tokens]


def _pooled(seen: Floats | None, layer: int, pool: Pool) -> Floats:
    if seen is None or not np.isfinite(seen).all():
        what = "gives no residual stream" if seen is None else "computes numbers that are not finite"
        raise EngineFailed(f"The model {what} after layer {layer}.")
    is_last = pool == "last" or len(seen) == 1
    pooled: Floats = seen[-1] if is_last else seen[1:].mean(axis=0)
    return pooled


if __name__ == "__main__":
    main()
