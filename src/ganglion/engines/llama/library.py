"""The one door to llama.cpp: a cffi binding of the C API that the pinned wheel exports.

Law: exported symbols are not a promise. `open_library` checks every symbol used and reads the library's own
default parameters back through our structs: a wrong layout misreads booleans silently, so anything
unexpected refuses to load. Every constructor's result is checked for NULL before it is used.
"""

import importlib.util
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import cffi
import numpy as np
import numpy.typing as npt

from ganglion.core.errors import EngineFailed, EngineUnavailable, LoadFailed
from ganglion.core.model import Pooling
from ganglion.engines.ipc import Signs

Floats = npt.NDArray[np.float32]

DECLARATIONS: Final = """
typedef int32_t llama_pos; typedef int32_t llama_token; typedef int32_t llama_seq_id;
typedef struct llama_batch {
  int32_t n_tokens; llama_token *token; float *embd; llama_pos *pos; int32_t *n_seq_id;
  llama_seq_id **seq_id; int8_t *logits;
} llama_batch;
typedef bool (*ggml_backend_sched_eval_callback)(void *t, bool ask, void *user_data);
typedef bool (*ggml_abort_callback)(void *data);
typedef void (*ggml_log_callback)(int level, const char *text, void *user_data);
struct llama_model_params {
  void *devices; void *tensor_buft_overrides; int32_t n_gpu_layers; int split_mode; int load_mode;
  int lazy_mode; int32_t main_gpu; const float *tensor_split; void *progress_callback;
  void *progress_callback_user_data; void *kv_overrides; bool vocab_only; bool check_tensors;
  bool use_extra_bufts; bool no_host; bool no_alloc; bool load_mtp;
};
struct llama_context_params {
  uint32_t n_ctx, n_batch, n_ubatch, n_seq_max, n_rs_seq, n_outputs_max, n_outputs_max_per_seq;
  int32_t n_threads, n_threads_batch;
  int ctx_type, rope_scaling_type, pooling_type, attention_type, flash_attn_type;
  float rope_freq_base, rope_freq_scale, yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
  uint32_t yarn_orig_ctx; float defrag_thold;
  ggml_backend_sched_eval_callback cb_eval; void *cb_eval_user_data; int type_k, type_v;
  size_t moe_cache_size; ggml_abort_callback abort_callback; void *abort_callback_data;
  bool embeddings, offload_kqv, no_perf, op_offload, swa_full, kv_unified;
  void *samplers; size_t n_samplers; void *ctx_other;
};
struct llama_sampler_chain_params { bool no_perf; };
void llama_backend_init(void);
void llama_log_set(ggml_log_callback callback, void *user_data);
struct llama_model_params llama_model_default_params(void);
struct llama_context_params llama_context_default_params(void);
struct llama_sampler_chain_params llama_sampler_chain_default_params(void);
void *llama_model_load_from_file(const char *path, struct llama_model_params params);
void llama_model_free(void *model);
void *llama_init_from_model(void *model, struct llama_context_params params);
void llama_free(void *context);
const void *llama_model_get_vocab(void *model);
int32_t llama_model_n_embd(void *model);
int32_t llama_model_n_layer(void *model);
int32_t llama_model_n_swa(void *model);
bool llama_model_is_recurrent(void *model);
bool llama_model_is_hybrid(void *model);
int32_t llama_model_n_embd_out(void *model);
uint32_t llama_model_n_cls_out(void *model);
int32_t llama_model_meta_val_str(void *model, const char *key, char *buffer, size_t size);
int32_t llama_vocab_n_tokens(const void *vocab);
llama_token llama_vocab_bos(const void *vocab);
llama_token llama_vocab_eos(const void *vocab);
llama_token llama_vocab_sep(const void *vocab);
llama_token llama_vocab_fim_pre(const void *vocab);
llama_token llama_vocab_fim_suf(const void *vocab);
llama_token llama_vocab_fim_mid(const void *vocab);
bool llama_vocab_get_add_bos(const void *vocab);
bool llama_vocab_get_add_eos(const void *vocab);
bool llama_vocab_get_add_sep(const void *vocab);
bool llama_vocab_is_eog(const void *vocab, llama_token token);
bool llama_vocab_is_control(const void *vocab, llama_token token);
int32_t llama_tokenize(const void *vocab, const char *text, int32_t length, llama_token *tokens,
                       int32_t most, bool add_special, bool parse_special);
int32_t llama_token_to_piece(const void *vocab, llama_token token, char *buffer, int32_t length,
                             int32_t lstrip, bool special);
int32_t llama_decode(void *context, llama_batch batch);
float *llama_get_logits_ith(void *context, int32_t row);
float *llama_get_embeddings_ith(void *context, int32_t row);
float *llama_get_embeddings_seq(void *context, llama_seq_id sequence);
void *llama_get_memory(void *context);
bool llama_memory_seq_rm(void *memory, llama_seq_id sequence, llama_pos start, llama_pos end);
void llama_memory_seq_cp(void *memory, llama_seq_id source, llama_seq_id target, llama_pos start,
                         llama_pos end);
int32_t llama_set_adapter_cvec(void *context, const float *data, size_t count, int32_t hidden_size,
                               int32_t first_layer, int32_t last_layer);
size_t llama_state_seq_get_size(void *context, llama_seq_id sequence);
size_t llama_state_seq_get_data(void *context, uint8_t *data, size_t size, llama_seq_id sequence);
size_t llama_state_seq_set_data(void *context, const uint8_t *data, size_t size, llama_seq_id sequence);
void *llama_sampler_chain_init(struct llama_sampler_chain_params params);
void llama_sampler_chain_add(void *chain, void *sampler);
void *llama_sampler_init_top_k(int32_t k);
void *llama_sampler_init_top_p(float p, size_t min_keep);
void *llama_sampler_init_min_p(float p, size_t min_keep);
void *llama_sampler_init_temp(float temperature);
void *llama_sampler_init_dist(uint32_t seed);
llama_token llama_sampler_sample(void *chain, void *context, int32_t row);
void llama_sampler_free(void *sampler);
const char *ggml_get_name(const void *tensor);
int64_t ggml_nelements(const void *tensor);
size_t ggml_nbytes(const void *tensor);
void ggml_backend_tensor_get(const void *tensor, void *data, size_t offset, size_t size);
"""

CPU_FLAGS: Final = ("avx2", "fma", "f16c", "bmi2")
"""What the wheel's kernels are compiled for; without them the first product is an illegal instruction."""

KV_TYPES: Final = {"f16": 1, "q4_0": 2, "q8_0": 8}
FLASH_ATTENTION: Final = {None: -1, False: 0, True: 1}
ERROR_LEVEL: Final = 4
POOLINGS: Final[dict[Pooling, int]] = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}


def missing_cpu_flags(cpuinfo: str) -> tuple[str, ...]:
    """Which needed flags a /proc/cpuinfo does not list; other systems list none and are not checked."""
    line = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), None)
    if line is None:
        return ()
    present = set(line.split())
    return tuple(flag for flag in CPU_FLAGS if flag not in present)


def library_path() -> Path:
    """GANGLION_LIBLLAMA when set, else the pinned wheel's extension module."""
    override = os.environ.get("GANGLION_LIBLLAMA")
    if override:
        return Path(override)
    spec = importlib.util.find_spec("xllamacpp")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in Path(folder).glob("xllamacpp*.so"):
            return path
    raise EngineUnavailable(
        "llama.cpp's library was not found.",
        hint="Install it with: pip install xllamacpp, or point GANGLION_LIBLLAMA at a libllama.so.",
        extras={"engine": "llama"},
    )


class Library:
    """The loaded library, its ABI checked."""

    def __init__(self, path: Path) -> None:
        self.ffi: Any = cffi.FFI()
        self.ffi.cdef(DECLARATIONS)
        try:
            self.lib: Any = self.ffi.dlopen(str(path))
        except OSError as error:
            raise _unusable(f"{path} cannot be loaded: {error}") from error
        self._check_symbols(path)
        self._check_defaults(path)
        self._errors: list[str] = []
        self._log = self.ffi.callback("ggml_log_callback", self._on_log)
        self.lib.llama_log_set(self._log, self.ffi.NULL)
        self.lib.llama_backend_init()

    def last_error(self) -> str:
        """What the library last complained of."""
        return self._errors[-1] if self._errors else "no reason given"

    def load_model(self, path: str, *, gpu_layers: int) -> "NativeModel":
        """Load a model file."""
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        pointer = self.lib.llama_model_load_from_file(os.fsencode(path), params)
        if pointer == self.ffi.NULL:
            raise LoadFailed(
                f"{path} could not be loaded: {self.last_error()}",
                hint="The file may be damaged, or of a kind that this llama.cpp does not know.",
            )
        return NativeModel(self, pointer)

    def _on_log(self, level: int, text: Any, _: Any) -> None:
        if level == ERROR_LEVEL:
            self._errors.append(self.ffi.string(text).decode("utf-8", "replace").strip())
            del self._errors[:-8]

    def _check_symbols(self, path: Path) -> None:
        names = re.findall(r"^[a-z].*?\*?\b((?:llama|ggml)_\w+)\(", DECLARATIONS, re.MULTILINE)
        missing = [name for name in names if not hasattr(self.lib, name)]
        if missing:
            raise _unusable(f"{path} lacks {', '.join(missing)}")

    def _check_defaults(self, path: Path) -> None:
        context = self.lib.llama_context_default_params()
        model = self.lib.llama_model_default_params()
        found = {
            "n_ctx": context.n_ctx,
            "n_batch": context.n_batch,
            "n_ubatch": context.n_ubatch,
            "n_seq_max": context.n_seq_max,
            "flash_attn_type": context.flash_attn_type,
            "type_k": context.type_k,
            "type_v": context.type_v,
            "embeddings": _raw_bool(self.ffi, context, "embeddings"),
            "offload_kqv": _raw_bool(self.ffi, context, "offload_kqv"),
            "op_offload": _raw_bool(self.ffi, context, "op_offload"),
            "swa_full": _raw_bool(self.ffi, context, "swa_full"),
            "kv_unified": _raw_bool(self.ffi, context, "kv_unified"),
            "vocab_only": _raw_bool(self.ffi, model, "vocab_only"),
            "use_extra_bufts": _raw_bool(self.ffi, model, "use_extra_bufts"),
        }
        wrong = [f"{name} is {value}" for name, value in found.items() if value != SENTINELS[name]]
        if wrong:
            raise _unusable(
                f"{path} has another struct layout than the one this binding knows ({'; '.join(wrong)})"
            )


SENTINELS: Final = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "flash_attn_type": -1,
    "type_k": 1,
    "type_v": 1,
    "embeddings": 0,
    "offload_kqv": 1,
    "op_offload": 1,
    "swa_full": 1,
    "kv_unified": 0,
    "vocab_only": 0,
    "use_extra_bufts": 1,
}
"""The library's default parameters, as the pinned version has them."""


def _raw_bool(ffi: Any, struct: Any, field: str) -> int:
    """A boolean as the byte it is: anything but 0 and 1 means that we read the wrong place."""
    value: int = ffi.cast("uint8_t *", ffi.addressof(struct, field))[0]
    return value


def _unusable(reason: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"llama.cpp cannot be used: {reason}.",
        hint="Reinstall with the pinned version (pip install --force-reinstall xllamacpp), or unset "
        "GANGLION_LIBLLAMA.",
        extras={"engine": "llama"},
    )


def open_library() -> Library:
    """Find, load and check the library; typed errors say what is wrong with this machine."""
    cpuinfo = Path("/proc/cpuinfo")
    missing = missing_cpu_flags(cpuinfo.read_text()) if cpuinfo.exists() else ()
    if missing and not os.environ.get("GANGLION_LIBLLAMA"):
        raise EngineUnavailable(
            f"This CPU lacks {', '.join(missing)}, which the bundled llama.cpp is compiled for.",
            hint="Build llama.cpp for this machine and point GANGLION_LIBLLAMA at its libllama.so.",
            extras={"engine": "llama"},
        )
    return Library(library_path())


class NativeModel:
    """A loaded model: its vocabulary, and contexts over its weights."""

    def __init__(self, library: Library, pointer: Any) -> None:
        self.library = library
        self._pointer = pointer
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
        self.block_count: int = lib.llama_model_n_layer(pointer)
        self.vector_size: int = lib.llama_model_n_embd_out(pointer)
        self.class_count: int = lib.llama_model_n_cls_out(pointer)

    def signs(self) -> Signs:
        """The vocabulary's own signs; a token that it does not have is None."""
        lib, vocab = self.library.lib, self._vocab

        def known(token: int) -> int | None:
            return token if token >= 0 else None

        return Signs(
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
        if count < 0:
            raise EngineFailed("The model's tokenizer refused the text.")
        result: list[int] = tokens[:count].tolist()
        return result

    def new_context(
        self,
        *,
        cells: int,
        slots: int,
        is_unified: bool,
        batch: int,
        threads: int,
        kv_type: str,
        flash_attention: bool | None,
        pooling: Pooling | None = None,
        eval_callback: tuple[Any, Any] | None = None,
    ) -> "NativeContext":
        """A context over this model's weights; `cells` is the total over all slots.

        With a `pooling` its batches give vectors: of each row with "none", else of each slot. An
        `eval_callback`, with its user data, sees its tensors; whoever gives it keeps both alive.
        """
        params = self.library.lib.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = batch
        params.n_seq_max = slots
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = FLASH_ATTENTION[flash_attention]
        params.type_k = params.type_v = KV_TYPES[kv_type]
        params.no_perf = True
        params.kv_unified = is_unified
        if pooling is not None:
            params.embeddings = True
            params.pooling_type = POOLINGS[pooling]
        if eval_callback is not None:
            params.cb_eval, params.cb_eval_user_data = eval_callback
        pointer = self.library.lib.llama_init_from_model(self._pointer, params)
        if pointer == self.library.ffi.NULL:
            raise LoadFailed(
                f"No context of {cells} tokens could be made: {self.library.last_error()}",
                hint="Try a smaller --kv-tokens or --context.",
            )
        return NativeContext(self, pointer, batch, streams=1 if is_unified else slots)

    def free(self) -> None:
        """Give the weights back; contexts must be gone by then."""
        self.library.lib.llama_model_free(self._pointer)


class NativeContext:
    """One KV cache and its compute buffers, with a batch that numpy fills in place."""

    def __init__(self, model: NativeModel, pointer: Any, batch: int, *, streams: int) -> None:
        self._streams = streams
        ffi, lib = model.library.ffi, model.library.lib
        self._model = model
        self._ffi, self._lib, self._pointer = ffi, lib, pointer
        self._memory = lib.llama_get_memory(pointer)
        self._tokens = np.zeros(batch, np.int32)
        self._positions = np.zeros(batch, np.int32)
        self._slots = np.zeros(batch, np.int32)
        self._counts = np.ones(batch, np.int32)
        self._wanted = np.zeros(batch, np.int8)
        # One flat array of slot numbers with a pointer into it per row: no Python loop fills a batch.
        base = ffi.cast("llama_seq_id *", self._slots.ctypes.data)
        self._slot_pointers = ffi.new("llama_seq_id *[]", [base + row for row in range(batch)])
        self._batch = ffi.new("llama_batch *")
        self._batch.token = ffi.cast("llama_token *", self._tokens.ctypes.data)
        self._batch.pos = ffi.cast("llama_pos *", self._positions.ctypes.data)
        self._batch.n_seq_id = ffi.cast("int32_t *", self._counts.ctypes.data)
        self._batch.seq_id = self._slot_pointers
        self._batch.logits = ffi.cast("int8_t *", self._wanted.ctypes.data)

    def decode(
        self, runs: Iterable[tuple[int, int, Sequence[int], bool]], more: Iterable[tuple[int, int]] = ()
    ) -> list[int | None]:
        """Run one batch of (slot, first position, tokens, wants logits); returns each run's logits row.

        `more` are spans of rows of the batch whose logits, or vectors, are wanted too.
        """
        row = 0
        rows: list[int | None] = []
        for slot, start, tokens, wants_logits in runs:
            end = row + len(tokens)
            self._tokens[row:end] = tokens
            self._positions[row:end] = range(start, start + len(tokens))
            self._slots[row:end] = slot
            self._wanted[row:end] = 0
            if wants_logits:
                self._wanted[end - 1] = 1
            rows.append(end - 1 if wants_logits else None)
            row = end
        for first, end in more:
            self._wanted[first:end] = 1
        self._batch.n_tokens = row
        status = self._lib.llama_decode(self._pointer, self._batch[0])
        if status != 0:
            raise EngineFailed(f"llama_decode returned {status} for a batch of {row} tokens.")
        return rows

    def steer(self, vectors: Floats | None) -> None:
        """Add a vector after each layer from 1 on, `[layers, hidden]`, to all that is decoded from now on."""
        size, last = self._model.hidden_size, self._model.block_count - 1
        if vectors is None:
            status = self._lib.llama_set_adapter_cvec(self._pointer, self._ffi.NULL, 0, size, 1, last)
        else:
            assert vectors.shape == (last, size)
            held = np.ascontiguousarray(vectors, np.float32)
            data = self._ffi.cast("const float *", held.ctypes.data)
            status = self._lib.llama_set_adapter_cvec(self._pointer, data, held.size, size, 1, last)
        if status != 0:
            raise EngineFailed(f"The library could not steer: {self._model.library.last_error()}")

    def logits(self, row: int) -> Floats:
        """The logits of a row of the last batch, as a view that sampling may change."""
        pointer = self._lib.llama_get_logits_ith(self._pointer, row)
        if pointer == self._ffi.NULL:
            raise EngineFailed(f"The library has no logits for row {row}.")
        size = self._model.vocabulary_size
        return np.frombuffer(self._ffi.buffer(pointer, size * 4), np.float32)

    def logits_of(self, first: int, count: int) -> Floats:
        """The logits of rows that follow each other in the last batch and were all wanted, as a view."""
        vocabulary_size = self._model.vocabulary_size
        start, end = (self.logits(row).ctypes.data for row in (first, first + count - 1))
        if end - start != (count - 1) * vocabulary_size * 4:
            raise EngineFailed(f"The library's logits of rows {first} to {first + count - 1} lie apart.")
        pointer = self._lib.llama_get_logits_ith(self._pointer, first)
        view = np.frombuffer(self._ffi.buffer(pointer, count * vocabulary_size * 4), np.float32)
        return view.reshape(count, vocabulary_size)

    def vectors_of(self, first: int, count: int) -> Floats:
        """The vectors of rows that follow each other in the last batch, as a copy."""
        size = self._model.vector_size
        found = np.empty((count, size), np.float32)
        for row in range(count):
            pointer = self._lib.llama_get_embeddings_ith(self._pointer, first + row)
            found[row] = self._vector(pointer, size)
        return found

    def pooled(self, slot: int, size: int) -> Floats:
        """What the last batch made of a slot as a whole, as a copy."""
        return self._vector(self._lib.llama_get_embeddings_seq(self._pointer, slot), size).copy()

    def _vector(self, pointer: Any, size: int) -> Floats:
        if pointer == self._ffi.NULL:
            raise EngineFailed("The library made no vector of what it read.")
        return np.frombuffer(self._ffi.buffer(pointer, size * 4), np.float32)

    @property
    def has_memory(self) -> bool:
        """Whether it keeps KV at all: encoders read everything at once and keep nothing."""
        has: bool = self._memory != self._ffi.NULL
        return has

    def trim(self, slot: int, length: int) -> bool:
        """Forget a slot's positions from `length` on."""
        is_done: bool = self._lib.llama_memory_seq_rm(self._memory, slot, length, -1)
        return is_done

    def share(self, source: int, target: int, length: int) -> None:
        """Let the target slot see the source's first cells; only in a unified context."""
        self._lib.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def save(self, slot: int) -> "SavedState":
        """A slot's KV, to be loaded into any slot of any context of the same model."""
        size = self._lib.llama_state_seq_get_size(self._pointer, slot)
        # So much earlier that the cells begin at a fixed place, however many empty streams precede them.
        stream = slot if self._streams > 1 else 0
        start = SavedState.MARGIN - 4 * stream
        words = np.empty((2 * SavedState.MARGIN + size) // 4 + 1, np.uint32)
        pointer = self._ffi.cast("uint8_t *", words.ctypes.data + start)
        if self._lib.llama_state_seq_get_data(self._pointer, pointer, size, slot) == 0:
            raise EngineFailed("The library could not save a sequence's state.")
        header = words[start // 4 : SavedState.MARGIN // 4 + 3]
        if header[2] != self._streams or header[3 : 3 + stream].any():
            raise EngineFailed("The library saves sequences in a format that this binding does not know.")
        end = start + size - 4 * (self._streams - 1 - stream)
        return SavedState(words, int(header[0]), end)

    def load(self, slot: int, state: "SavedState") -> None:
        """Put saved KV into an empty slot."""
        if not self.try_load(slot, state):
            raise EngineFailed(
                f"The library could not restore a sequence: {self._model.library.last_error()}"
            )

    def try_load(self, slot: int, state: "SavedState") -> bool:
        """Put saved KV into an empty slot, or leave it empty when it does not fit."""
        address, size = state.framed(slot, self._streams)
        pointer = self._ffi.cast("const uint8_t *", address)
        read: int = self._lib.llama_state_seq_set_data(self._pointer, pointer, size, slot)
        return read > 0

    def free(self) -> None:
        """Give the cache back."""
        self._lib.llama_free(self._pointer)

    def sample(self, chain: "SamplerChain", row: int) -> int:
        """Draw a token from a row's logits."""
        token: int = self._lib.llama_sampler_sample(chain.pointer, self._pointer, row)
        return token


class SavedState:
    """A sequence's KV as bytes, with room around it for the header that each target context expects.

    The library writes `magic, slot, streams`, then for each stream its number of cells and the cells. It
    refuses a state whose number of streams is not its own, although the cells are the same: so the header is
    written anew for each target, in place, and nothing is copied.
    """

    MARGIN: Final = 1024
    """Four bytes for each of the most slots that a context can have."""
    HEADER: Final = 12
    WORD: Final = 4
    """What the size of the cells is a multiple of, so that the words after them can be written in place."""

    def __init__(self, words: npt.NDArray[np.uint32], magic: int, end: int) -> None:
        self._words = words
        self.magic = magic
        self._end = end

    @classmethod
    def blank(cls, magic: int, size_bytes: int) -> "SavedState":
        """Room for cells of that size, to be filled in place."""
        end = cls.MARGIN + cls.HEADER + size_bytes
        return cls(np.empty((end + cls.MARGIN) // 4 + 1, np.uint32), magic, end)

    @property
    def cells(self) -> memoryview:
        """The bytes that are the same in every context, to be read or filled."""
        return self._words.data.cast("B")[self.MARGIN + self.HEADER : self._end]

    def framed(self, slot: int, streams: int) -> tuple[int, int]:
        """Address and size of the state as a context with so many streams wrote it."""
        start = self.MARGIN // 4
        self._words[start : start + 3] = (self.magic, slot, streams)
        self._words[self._end // 4 : self._end // 4 + streams - 1] = 0
        return self._words.ctypes.data + self.MARGIN, self._end - self.MARGIN + 4 * (streams - 1)


class SamplerChain:
    """llama.cpp's own samplers in a row, drawing at the end."""

    def __init__(
        self, library: Library, *, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
    ) -> None:
        self._lib = library.lib
        params = self._lib.llama_sampler_chain_default_params()
        params.no_perf = True
        self.pointer = self._lib.llama_sampler_chain_init(params)
        parts = []
        if top_k > 0:
            parts.append(self._lib.llama_sampler_init_top_k(top_k))
        if top_p < 1.0:
            parts.append(self._lib.llama_sampler_init_top_p(top_p, 1))
        if min_p > 0.0:
            parts.append(self._lib.llama_sampler_init_min_p(min_p, 1))
        parts.append(self._lib.llama_sampler_init_temp(temperature))
        parts.append(self._lib.llama_sampler_init_dist(seed))
        for part in parts:
            # Adding NULL to a chain crashes at the next sample, far from its cause.
            if part == library.ffi.NULL:
                raise EngineFailed("The library refused a sampler.")
            self._lib.llama_sampler_chain_add(self.pointer, part)

    def free(self) -> None:
        """Give the chain back."""
        self._lib.llama_sampler_free(self.pointer)
