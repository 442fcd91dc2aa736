"""The child process behind `read_residuals`: it loads the model and runs texts through it.

Started by `child.py`; it answers one `ReadResiduals` with `ResidualsOpened` and a `Residual` for each text.

The library computes a layer for all rows of a batch, except the last one: from there on only rows whose
logits are wanted go on. So the last layer is none of those that can be read.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue
from ganglion.engines.child_main import serve
from ganglion.engines.llama.concepts.capture import RESIDUAL_PREFIX
from ganglion.engines.llama.concepts.residual_frames import (
    LARGEST_TEXT_TOKENS,
    Pool,
    ReadResiduals,
    Residual,
    ResidualFrame,
    ResidualsOpened,
    ResidualsRefusal,
)
from ganglion.engines.llama.native.arrays import Floats
from ganglion.engines.llama.native.eval_filter import EvalFilter
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import NativeModel, load_model

_TEXTS_AT_ONCE: Final = 32


class _ResidualTap:
    """Copies the residual stream while a batch runs: after each wanted layer, `[tokens, hidden]`."""

    def __init__(self, model: NativeModel, layers: Sequence[int]) -> None:
        self._library = model.library
        self._layers = {RESIDUAL_PREFIX + str(layer).encode(): layer for layer in layers}
        self._hidden_size = model.hidden_size
        self.seen: dict[int, Floats] = {}
        self._filter = EvalFilter(model.library, RESIDUAL_PREFIX, self._on_tensor)
        self._filter.is_on = True
        self.hook = self._filter.hook

    def _on_tensor(self, name: bytes, tensor: Any, is_asked: bool) -> bool:
        layer = self._layers.get(name)
        if layer is None or is_asked:
            return layer is not None
        values = np.empty(self._library.lib.ggml_nbytes(tensor) // 4, np.float32)
        pointer = self._library.ffi.cast("void *", values.ctypes.data)
        self._library.lib.ggml_backend_tensor_get(tensor, pointer, 0, values.nbytes)
        self.seen[layer] = values.reshape(-1, self._hidden_size)
        return True


def _answer(body: bytes) -> Iterator[bytes]:
    for frame in _answer_frames(msgspec.msgpack.decode(body, type=ReadResiduals)):
        yield msgspec.msgpack.encode(frame)


def _answer_frames(ask: ReadResiduals) -> Iterator[ResidualFrame]:
    try:
        yield from _read(ask)
    except GanglionError as error:
        yield ResidualsRefusal(error.code, error.message, error.hint)


def _read(ask: ReadResiduals) -> Iterator[ResidualFrame]:
    model = load_model(open_library(), ask.path, gpu_layers=ask.gpu_layers)
    opened = _opened(model, ask)
    watch = _ResidualTap(model, opened.layers)
    # A recurrent model's batches are reordered by the library, and rows would be taken for another text's.
    at_once = _TEXTS_AT_ONCE if model.can_trim else 1
    context = model.new_context(
        cells=LARGEST_TEXT_TOKENS,
        slots=at_once,
        is_unified=True,
        batch=LARGEST_TEXT_TOKENS,
        threads=ask.threads,
        kv_type="f16",
        flash_attention=None,
        eval_callback=watch.hook,
    )
    yield opened
    for group in _groups((_tokens(model, text) for text in ask.texts), at_once):
        kept = [tokens[:LARGEST_TEXT_TOKENS] for tokens in group]
        watch.seen.clear()
        context.decode((slot, 0, tokens, slot == len(kept) - 1) for slot, tokens in enumerate(kept))
        for slot in range(len(kept)):
            context.trim(slot, 0)
        rows = sum(map(len, kept))
        streams = [_checked(watch.seen.get(layer), layer, rows) for layer in opened.layers]
        end = 0
        for tokens, read in zip(group, kept, strict=True):
            first, end = end, end + len(read)
            values = np.stack([_pooled(stream[first:end], ask.pool) for stream in streams])
            yield Residual(values.tobytes(), len(tokens), len(tokens) > len(read))


def _groups(texts: Iterable[list[int]], at_once: int) -> Iterator[list[list[int]]]:
    """Texts that fit one batch together, in their order."""
    group: list[list[int]] = []
    for tokens in texts:
        held = sum(map(len, group))
        if group and (len(group) == at_once or held + len(tokens) > LARGEST_TEXT_TOKENS):
            yield group
            group = []
        group.append(tokens)
    if group:
        yield group


def _opened(model: NativeModel, ask: ReadResiduals) -> ResidualsOpened:
    architecture = model.metadata("general.architecture") or ""
    block_count = model.block_count
    readable = range(block_count - 1)
    layers = list(readable) if ask.layers is None else ask.layers
    if not layers or any(layer not in readable for layer in layers):
        raise InvalidValue(
            f"The model has {block_count} layers, of which 0 to {block_count - 2} can be read; "
            f"asked for {', '.join(map(str, layers)) or 'none'}.",
            param="layers",
            hint="--layers auto chooses four of them.",
        )
    return ResidualsOpened(architecture, model.hidden_size, block_count, layers)


def _tokens(model: NativeModel, text: str) -> list[int]:
    """A text behind the sign that begins texts, where the vocabulary has one.

    The first position takes no part: a model leaves attention there that it has no use for, and the residual
    grows to several times any other's, late in the model to fifty times, whatever the text says.
    """
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    begin = model.special_tokens().bos
    return tokens if begin is None else [begin, *tokens]


def _checked(seen: Floats | None, layer: int, rows: int) -> Floats:
    if seen is None or len(seen) != rows or not np.isfinite(seen).all():
        what = "gives no residual stream" if seen is None else "computes numbers that cannot be used"
        raise EngineFailed(f"The model {what} after layer {layer}.")
    return seen


def _pooled(stream: Floats, pool: Pool) -> Floats:
    is_last = pool == "last" or len(stream) == 1
    pooled: Floats = stream[-1] if is_last else stream[1:].mean(axis=0)
    return pooled


if __name__ == "__main__":
    serve(lambda _: _answer)
