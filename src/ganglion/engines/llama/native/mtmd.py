"""A projector of the pinned library's `mtmd` API: what turns a picture's pixels into rows of embeddings.

Law: only this file knows that API. It is declared experimental, so every symbol is looked for and the default
parameters are read back through our struct before anything is called with it. `lay_out` may be called from
several threads, `encode` from one at a time: its result lies in the projector's own buffer.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ganglion.core.errors import EngineFailed, EngineUnavailable, InvalidValue, LoadFailed
from ganglion.engines.llama.native.arrays import Floats
from ganglion.engines.llama.native.library import Library
from ganglion.engines.llama.native.picture_rows import PictureRows, Places

_DECLARATIONS: Final = """
struct mtmd_context_params {
  bool use_gpu; void *device; bool print_timings; int n_threads; const char *image_marker;
  const char *media_marker; int flash_attn_type; bool warmup; int image_min_tokens; int image_max_tokens;
  ggml_backend_sched_eval_callback cb_eval; void *cb_eval_user_data; int32_t batch_max_tokens;
  void *progress_callback; void *progress_callback_user_data;
};
struct mtmd_input_text { const char *text; size_t text_len; bool add_special; bool parse_special; };
struct mtmd_decoder_pos { uint32_t t; uint32_t x; uint32_t y; uint32_t z; };
void mtmd_log_set(ggml_log_callback callback, void *user_data);
struct mtmd_context_params mtmd_context_params_default(void);
void *mtmd_init_from_file(const char *path, const void *model, struct mtmd_context_params params);
void mtmd_free(void *projector);
bool mtmd_decode_use_non_causal(const void *projector, const void *chunk);
bool mtmd_decode_use_mrope(const void *projector);
bool mtmd_support_vision(const void *projector);
bool mtmd_support_audio(const void *projector);
int mtmd_get_audio_sample_rate(const void *projector);
const char *mtmd_get_marker(const void *projector);
void *mtmd_bitmap_init(uint32_t width, uint32_t height, const unsigned char *data);
void *mtmd_bitmap_init_from_audio(size_t count, const float *data);
void mtmd_bitmap_free(void *bitmap);
void *mtmd_input_chunks_init(void);
size_t mtmd_input_chunks_size(const void *chunks);
const void *mtmd_input_chunks_get(const void *chunks, size_t number);
void mtmd_input_chunks_free(void *chunks);
int mtmd_input_chunk_get_type(const void *chunk);
const llama_token *mtmd_input_chunk_get_tokens_text(const void *chunk, size_t *count);
const void *mtmd_input_chunk_get_tokens_image(const void *chunk);
size_t mtmd_input_chunk_get_n_tokens(const void *chunk);
llama_pos mtmd_input_chunk_get_n_pos(const void *chunk);
struct mtmd_decoder_pos mtmd_image_tokens_get_decoder_pos(const void *image, llama_pos first, size_t number);
int32_t mtmd_tokenize(const void *projector, void *chunks, const struct mtmd_input_text *text,
                      const void **bitmaps, size_t count);
int32_t mtmd_encode_chunk(void *projector, const void *chunk);
float *mtmd_get_output_embd(void *projector);
"""
_DEFAULTS: Final = {
    "use_gpu": 1,
    "print_timings": 1,
    "n_threads": 4,
    "flash_attn_type": -1,
    "warmup": 1,
    "image_min_tokens": -1,
    "image_max_tokens": -1,
    "batch_max_tokens": 1024,
}
"""The library's default parameters, as the pinned version has them."""
_BOOLEANS: Final = frozenset({"use_gpu", "print_timings", "warmup"})
_MARKER: Final = b"<__media__>"
_TEXT_CHUNK: Final = 0


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """A part of what a picture becomes: marker tokens of the vocabulary, or rows of embeddings."""

    tokens: tuple[int, ...] = ()
    rows: int = 0
    positions: int = 0
    """How many positions the rows take: fewer than there are, where rows have coordinates."""
    places: Places | None = None
    """These coordinates."""
    is_whole: bool = False
    """Whether the rows see each other in both directions, so that one batch must hold them all."""


class PictureLayout:
    """What one picture becomes, with the pixels as the projector wants them; freed by whoever holds it."""

    def __init__(self, library: Library, chunks: Any, stretches: tuple[Stretch, ...]) -> None:
        self._library = library
        self.chunks = chunks
        self.stretches = stretches

    @property
    def row_count(self) -> int:
        """How many rows of embeddings it takes."""
        return sum(stretch.rows for stretch in self.stretches)

    def free(self) -> None:
        """Give the pixels back."""
        self._library.lib.mtmd_input_chunks_free(self.chunks)


class Projector:
    """A projector file over a loaded model."""

    def __init__(self, library: Library, pointer: Any, width: int) -> None:
        """`width` is how many values a row has."""
        self._library = library
        self._pointer = pointer
        self.width = width
        lib = library.lib
        self.sees: bool = lib.mtmd_support_vision(pointer)
        self.hears: bool = lib.mtmd_support_audio(pointer)
        self.sample_rate: int = lib.mtmd_get_audio_sample_rate(pointer) if self.hears else 0
        self.uses_coordinates: bool = lib.mtmd_decode_use_mrope(pointer)
        """Whether a row has a place in its picture besides its position in the sequence."""

    def lay_out(self, width: int, height: int, rgb: bytes | None) -> PictureLayout:
        """What a picture becomes; without pixels it can be counted and not be encoded."""
        bitmap = self._library.lib.mtmd_bitmap_init(
            width, height, self._library.ffi.NULL if rgb is None else rgb
        )
        return self._laid_out(bitmap)

    def lay_out_sound(self, samples: Floats) -> PictureLayout:
        """What a sound becomes: its samples at this projector's rate, from -1 to 1."""
        held = np.ascontiguousarray(samples, np.float32)
        data = self._library.ffi.cast("const float *", held.ctypes.data)
        return self._laid_out(self._library.lib.mtmd_bitmap_init_from_audio(len(held), data))

    def encode(self, layout: PictureLayout) -> tuple[PictureRows, ...]:
        """The rows of each stretch that has any, as copies; releases the interpreter lock meanwhile."""
        lib, ffi = self._library.lib, self._library.ffi
        found: list[PictureRows] = []
        for number, stretch in enumerate(layout.stretches):
            if not stretch.rows:
                continue
            chunk = lib.mtmd_input_chunks_get(layout.chunks, number)
            if lib.mtmd_encode_chunk(self._pointer, chunk) != 0:
                raise EngineFailed(f"The projector could not read a picture: {self._library.last_error()}")
            size = stretch.rows * self.width * 4
            rows = np.frombuffer(ffi.buffer(lib.mtmd_get_output_embd(self._pointer), size), np.float32)
            found.append(
                PictureRows(
                    rows.reshape(stretch.rows, self.width).copy(),
                    stretch.places,
                    stretch.is_whole,
                    stretch.rows - stretch.positions,
                )
            )
        return tuple(found)

    def free(self) -> None:
        """Give its weights back."""
        self._library.lib.mtmd_free(self._pointer)

    def _laid_out(self, bitmap: Any) -> PictureLayout:
        ffi, lib = self._library.ffi, self._library.lib
        chunks = lib.mtmd_input_chunks_init()
        with self._freed(bitmap):
            marker = ffi.new("char[]", _MARKER)
            text = ffi.new("struct mtmd_input_text *", [marker, len(_MARKER), False, True])
            bitmaps = ffi.new("const void *[]", [bitmap])
            status = lib.mtmd_tokenize(self._pointer, chunks, text, bitmaps, 1)
        if status != 0:
            lib.mtmd_input_chunks_free(chunks)
            raise InvalidValue(
                f"The model's projector cannot read this picture: {self._library.last_error()}"
            )
        try:
            stretches = tuple(
                self._stretch(chunks, each) for each in range(lib.mtmd_input_chunks_size(chunks))
            )
        except BaseException:
            lib.mtmd_input_chunks_free(chunks)
            raise
        return PictureLayout(self._library, chunks, stretches)

    @contextmanager
    def _freed(self, bitmap: Any) -> Iterator[None]:
        try:
            yield
        finally:
            self._library.lib.mtmd_bitmap_free(bitmap)

    def _stretch(self, chunks: Any, number: int) -> Stretch:
        ffi, lib = self._library.ffi, self._library.lib
        chunk = lib.mtmd_input_chunks_get(chunks, number)
        if lib.mtmd_input_chunk_get_type(chunk) != _TEXT_CHUNK:
            rows = lib.mtmd_input_chunk_get_n_tokens(chunk)
            return Stretch(
                rows=rows,
                positions=lib.mtmd_input_chunk_get_n_pos(chunk),
                places=self._places(chunk, rows) if self.uses_coordinates else None,
                is_whole=lib.mtmd_decode_use_non_causal(self._pointer, chunk),
            )
        count = ffi.new("size_t *")
        pointer = lib.mtmd_input_chunk_get_tokens_text(chunk, count)
        tokens = tuple(ffi.unpack(pointer, count[0])) if count[0] else ()
        if any(token < 0 for token in tokens):
            raise LoadFailed(
                "The model's vocabulary lacks the tokens that this projector puts around a picture.",
                hint="The projector belongs to another model; name the right one with --mmproj.",
            )
        return Stretch(tokens=tokens)

    def _places(self, chunk: Any, count: int) -> Places:
        """The coordinates of a chunk's rows, of which a sound's are its positions."""
        lib, ffi = self._library.lib, self._library.ffi
        image = lib.mtmd_input_chunk_get_tokens_image(chunk)
        if image == ffi.NULL:
            return np.tile(np.arange(count, dtype=np.int32), (4, 1))
        found = np.zeros((4, count), np.int32)
        for row in range(count):
            place = lib.mtmd_image_tokens_get_decoder_pos(image, 0, row)
            found[:, row] = place.t, place.y, place.x, place.z
        return found


def load_projector(
    library: Library, path: str, model: Any, *, width: int, threads: int, uses_gpu: bool
) -> Projector:
    """Load a projector file over a model's pointer; raises LoadFailed for one of another model."""
    _declare(library)
    ffi, lib = library.ffi, library.lib
    params = lib.mtmd_context_params_default()
    params.use_gpu, params.n_threads = uses_gpu, threads
    params.print_timings = False
    params.warmup = False
    pointer = lib.mtmd_init_from_file(os.fsencode(path), model, params)
    if pointer == ffi.NULL:
        raise LoadFailed(
            f"The projector {path} could not be loaded: {library.last_error()}",
            hint="It may be damaged, belong to another model, or be of a kind that this llama.cpp does not "
            "know. Name another with --mmproj, or load the model without it: --mmproj none.",
        )
    return Projector(library, pointer, width)


def _declare(library: Library) -> None:
    """Make the API known and check it; raises EngineUnavailable where it is another one."""
    ffi, lib = library.ffi, library.lib
    ffi.cdef(_DECLARATIONS, override=True)
    names = re.findall(r"^[a-z].*?\*?\b(mtmd_\w+)\(", _DECLARATIONS, re.MULTILINE)
    missing = [name for name in names if not hasattr(lib, name)]
    if missing:
        raise _unusable(f"it lacks {', '.join(missing)}")
    params = lib.mtmd_context_params_default()
    found = {name: _number(ffi, params, name) for name in _DEFAULTS}
    wrong = [f"{name} is {value}" for name, value in found.items() if value != _DEFAULTS[name]]
    if wrong or params.media_marker == ffi.NULL or ffi.string(params.media_marker) != _MARKER:
        raise _unusable(f"its parameters have another layout ({'; '.join(wrong) or 'another marker'})")
    lib.mtmd_log_set(library.log_callback, ffi.NULL)


def _number(ffi: Any, params: Any, name: str) -> int:
    if name in _BOOLEANS:
        value: int = ffi.cast("uint8_t *", ffi.addressof(params, name))[0]
        return value
    return int(getattr(params, name))


def _unusable(reason: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"This llama.cpp cannot read pictures: {reason}.",
        hint="Reinstall with the pinned version (pip install --force-reinstall xllamacpp), build it again, "
        "or load the model without its projector: --mmproj none.",
        extras={"engine": "llama"},
    )
