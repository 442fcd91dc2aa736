"""A loaded model: its vocabulary, and contexts over its weights."""

import os
from typing import Any, Final

import numpy as np

from ganglion.core.errors import EngineFailed, LoadFailed
from ganglion.core.model import Pooling
from ganglion.engines.llama.native.context import ModelSizes, NativeContext
from ganglion.engines.llama.native.library import Library
from ganglion.engines.llama.native.mtmd import Projector, load_projector
from ganglion.engines.supervision.ipc import SpecialTokens

_KV_TYPES: Final = {"f16": 1, "q4_0": 2, "q8_0": 8}
_FLASH_ATTENTION: Final = {None: -1, False: 0, True: 1}
_POOLINGS: Final[dict[Pooling, int]] = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
_WHOLE_MODEL: Final = 0
"""How the library divides a model among GPUs: not at all."""
_UNMAPPED: Final = 0
"""How the library loads a file that it reads whole."""
_KEEPING_VOCABULARIES: Final = (1, 2)
"""SentencePiece's and byte pairs: others normalize a text, or take an unknown word for one token."""
_CUTTING: Final = 1 | 8 | 16
"""Attributes of tokens at which a text is cut before it is tokenized: unknown, control, user-defined."""
_COORDINATE_ROPES: Final = (8, 40)
"""M-RoPE and its interleaved form."""
_STRIPPING: Final = 128 | 256
"""Of tokens that swallow the white space on their left, or right."""


def load_model(
    library: Library,
    path: str,
    *,
    gpu_layers: int,
    gpu_split: tuple[float, ...] = (),
    gpu_main: int | None = None,
    is_mapped: bool = True,
) -> "NativeModel":
    """Load a model file; unless it is mapped, it may go when this returns.

    The layers for GPUs are divided as `gpu_split` says, or all are put on `gpu_main`.
    """
    params = library.lib.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    shares = library.ffi.new("float[]", split_shares(gpu_split, library.lib.llama_max_devices()))
    if gpu_split:
        params.tensor_split = shares
    if gpu_main is not None:
        params.split_mode, params.main_gpu = _WHOLE_MODEL, gpu_main
    if not is_mapped:
        params.load_mode = _UNMAPPED
    pointer = library.lib.llama_model_load_from_file(os.fsencode(path), params)
    if pointer == library.ffi.NULL:
        raise LoadFailed(
            f"{path} could not be loaded: {library.last_error()}",
            hint="The file may be damaged, or of a kind that this llama.cpp does not know.",
        )
    return NativeModel(library, pointer)


def split_shares(asked: tuple[float, ...], most_devices: int) -> list[float]:
    """A share for each device that the library could know: it reads so many, whatever was asked."""
    if len(asked) > most_devices:
        raise LoadFailed(
            f"gpu_split names {len(asked)} GPUs, and this llama.cpp knows {most_devices} at most.",
            hint="Give as many shares as there are GPUs, as in --gpu-split 3,1.",
        )
    return [*asked, *[0.0] * (most_devices - len(asked))]


class NativeModel:
    """A loaded model: its vocabulary, and contexts over its weights."""

    def __init__(self, library: Library, pointer: Any) -> None:
        self.library = library
        self._pointer = pointer
        self._adapter: Any = None
        lib = library.lib
        self._vocab = lib.llama_model_get_vocab(pointer)
        self.vocabulary_size: int = lib.llama_vocab_n_tokens(self._vocab)
        self.can_trim = not (lib.llama_model_is_recurrent(pointer) or lib.llama_model_is_hybrid(pointer))
        self.has_one_cache: bool = self.can_trim and lib.llama_model_n_swa(pointer) == 0
        """Whether all layers keep KV alike. Sliding windows and recurrent layers keep several kinds, and a
        saved state of these only fits contexts of the same shape."""
        self.end_tokens = tuple(
            token for token in range(self.vocabulary_size) if lib.llama_vocab_is_eog(self._vocab, token)
        )
        self.hidden_size: int = lib.llama_model_n_embd(pointer)
        self.input_size: int = lib.llama_model_n_embd_inp(pointer)
        """How many values a row of embeddings has that takes a token's place."""
        self.has_coordinates: bool = lib.llama_model_rope_type(pointer) in _COORDINATE_ROPES
        """Whether rows of pictures have places of their own besides their positions."""
        self.block_count: int = lib.llama_model_n_layer(pointer)
        self.vector_size: int = lib.llama_model_n_embd_out(pointer)
        self.class_count: int = lib.llama_model_n_cls_out(pointer)

    def adapt(self, path: str) -> None:
        """Load an adapter that all contexts made from now on apply; a model that refuses it is freed."""
        adapter = self.library.lib.llama_adapter_lora_init(self._pointer, os.fsencode(path))
        if adapter == self.library.ffi.NULL:
            self.free()
            raise LoadFailed(f"An adapter could not be loaded: {self.library.last_error()}")
        self._adapter = adapter  # freed with the model

    def project(self, path: str, *, threads: int, uses_gpu: bool) -> Projector:
        """Load what turns pictures into rows of this model's embeddings."""
        return load_projector(
            self.library, path, self._pointer, width=self.input_size, threads=threads, uses_gpu=uses_gpu
        )

    def special_tokens(self) -> SpecialTokens:
        """The vocabulary's own signs; a token that it does not have is None."""
        lib, vocab = self.library.lib, self._vocab

        def known(token: int) -> int | None:
            return token if token >= 0 else None

        return SpecialTokens(
            bos=known(lib.llama_vocab_bos(vocab)),
            eos=known(lib.llama_vocab_eos(vocab)),
            separator=known(lib.llama_vocab_sep(vocab)),
            adds_bos=lib.llama_vocab_get_add_bos(vocab),
            adds_eos=lib.llama_vocab_get_add_eos(vocab),
            adds_separator=lib.llama_vocab_get_add_sep(vocab),
            fill_prefix=known(lib.llama_vocab_fim_pre(vocab)),
            fill_suffix=known(lib.llama_vocab_fim_suf(vocab)),
            fill_middle=known(lib.llama_vocab_fim_mid(vocab)),
            ends=list(self.end_tokens),
        )

    def metadata(self, key: str) -> str | None:
        """What the file says under a key, as text."""
        size = self.library.lib.llama_model_meta_val_str(
            self._pointer, key.encode(), self.library.ffi.NULL, 0
        )
        if size < 0:
            return None
        buffer = self.library.ffi.new("char[]", size + 1)
        self.library.lib.llama_model_meta_val_str(self._pointer, key.encode(), buffer, size + 1)
        text: bytes = self.library.ffi.string(buffer)
        return text.decode("utf-8", "replace")

    @property
    def keeps_all_text(self) -> bool:
        """Whether the tokens of a text, put together, are the text, but for white space around markers."""
        return self.library.lib.llama_vocab_type(self._vocab) in _KEEPING_VOCABULARIES

    @property
    def strips_whitespace(self) -> bool:
        """Whether some marker swallows the white space beside it."""
        return any(self._attributes(token) & _STRIPPING for token in range(self.vocabulary_size))

    def markers(self) -> list[bytes]:
        """The names of the tokens that are looked for in a text before it is tokenized."""
        cutting = (token for token in range(self.vocabulary_size) if self._attributes(token) & _CUTTING)
        return [name for token in cutting if (name := self.piece(token))]

    def _attributes(self, token: int) -> int:
        attributes: int = self.library.lib.llama_vocab_get_attr(self._vocab, token)
        return attributes

    def is_control(self, token: int) -> bool:
        """Whether a token is the vocabulary's own sign and not text."""
        result: bool = self.library.lib.llama_vocab_is_control(self._vocab, token)
        return result

    def piece(self, token: int) -> bytes:
        """A token's bytes, control tokens by their names."""
        buffer = self.library.ffi.new("char[]", 64)
        size = self.library.lib.llama_token_to_piece(self._vocab, token, buffer, 64, 0, True)
        if size < 0:
            buffer = self.library.ffi.new("char[]", -size)
            size = self.library.lib.llama_token_to_piece(self._vocab, token, buffer, -size, 0, True)
        result: bytes = self.library.ffi.buffer(buffer, max(size, 0))[:]
        return result

    @property
    def tokenizer_pointers(self) -> tuple[int, int]:
        """Addresses of the vocabulary and of the function that tokenizes with it, for other native code."""
        ffi, lib = self.library.ffi, self.library.lib
        function = ffi.addressof(lib, "llama_tokenize")
        return int(ffi.cast("uintptr_t", self._vocab)), int(ffi.cast("uintptr_t", function))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Text to token ids; releases the interpreter lock while it works."""
        data = text.encode("utf-8", "surrogatepass")
        most = len(data) + 8
        # Where a space is no token it becomes three: then more are needed, and the library says how many.
        for _ in range(2):
            tokens = np.empty(most, np.int32)
            count = self.library.lib.llama_tokenize(
                self._vocab,
                data,
                len(data),
                self.library.ffi.cast("llama_token *", tokens.ctypes.data),
                most,
                add_special,
                parse_special,
            )
            if count >= 0:
                result: list[int] = tokens[:count].tolist()
                return result
            most = -count
        raise EngineFailed("The model's tokenizer refused the text.")

    def new_context(
        self,
        *,
        cells: int,
        slots: int,
        is_unified: bool,
        batch: int,
        micro_batch: int | None = None,
        threads: int,
        kv_type: str,
        flash_attention: bool | None,
        pooling: Pooling | None = None,
        eval_callback: tuple[Any, Any] | None = None,
    ) -> NativeContext:
        """A context over this model's weights; `cells` is the total over all slots.

        Of a batch, `micro_batch` rows are computed at once; left out, all.

        With a `pooling` its batches give vectors: of each row with "none", else of each slot. An
        `eval_callback`, with its user data, sees its tensors; whoever gives it keeps both alive.
        """
        params = self.library.lib.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch, params.n_ubatch = batch, micro_batch or batch
        params.n_seq_max = slots
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = _FLASH_ATTENTION[flash_attention]
        params.type_k = params.type_v = _KV_TYPES[kv_type]
        params.no_perf = True
        params.kv_unified = is_unified
        if pooling is not None:
            params.embeddings = True
            params.pooling_type = _POOLINGS[pooling]
        if eval_callback is not None:
            params.cb_eval, params.cb_eval_user_data = eval_callback
        pointer = self.library.lib.llama_init_from_model(self._pointer, params)
        if pointer == self.library.ffi.NULL:
            raise LoadFailed(
                f"No context of {cells} tokens could be made: {self.library.last_error()}",
                hint="Try a smaller --kv-tokens or --context.",
            )
        if self._adapter is not None:
            self._apply_adapter(pointer)
        sizes = ModelSizes(
            self.vocabulary_size,
            self.hidden_size,
            self.input_size,
            self.block_count,
            self.vector_size,
            self.has_coordinates,
        )
        return NativeContext(self.library, sizes, pointer, batch, streams=1 if is_unified else slots)

    def _apply_adapter(self, context: Any) -> None:
        ffi = self.library.ffi
        adapters, scales = ffi.new("void *[]", [self._adapter]), ffi.new("float[]", [1.0])
        if self.library.lib.llama_set_adapters_lora(context, adapters, 1, scales) != 0:
            raise LoadFailed(f"An adapter could not be applied: {self.library.last_error()}")

    def free(self) -> None:
        """Give the weights back; contexts must be gone by then."""
        self.library.lib.llama_model_free(self._pointer)
