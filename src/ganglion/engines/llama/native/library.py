"""The one door to llama.cpp: a cffi binding of the C API that the pinned wheel exports.

Law: exported symbols are not a promise. `open_library` checks every symbol used and reads the library's own
default parameters back through our structs: a wrong layout misreads booleans silently, so anything
unexpected refuses to load. Every constructor's result is checked for NULL before it is used.
"""

import importlib.util
import os
import re
from pathlib import Path
from typing import Any, Final

import cffi

from ganglion.core.errors import EngineUnavailable
from ganglion.engines.llama.native.built import usable_build

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
typedef struct llama_logit_bias { llama_token token; float bias; } llama_logit_bias;
struct llama_sampler_data { void *logits; void *probs; void *sampled; void *candidates; };
struct llama_sampler_i {
  const char *(*name)(const void *sampler); void (*accept)(void *sampler, llama_token token);
  void (*apply)(void *sampler, void *candidates); void (*reset)(void *sampler);
  void *(*clone)(const void *sampler); void (*free)(void *sampler);
  bool (*backend_init)(void *sampler, void *buffer_type, uint32_t most_outputs);
  void (*backend_accept)(void *sampler, void *arena, void *graph, void *token);
  void (*backend_apply)(void *sampler, void *arena, void *graph, struct llama_sampler_data *data);
  void (*backend_set_input)(void *sampler); void (*backend_reset)(void *sampler);
  void (*copy_state)(const void *source, void *target);
};
struct llama_sampler { struct llama_sampler_i *iface; void *ctx; };
struct ggml_init_params { size_t mem_size; void *mem_buffer; bool no_alloc; };
struct gguf_init_params { bool no_alloc; void **ctx; };
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
int32_t llama_model_n_embd_inp(void *model);
int32_t llama_model_n_layer(void *model);
int llama_model_rope_type(const void *model);
int32_t llama_model_n_swa(void *model);
bool llama_supports_gpu_offload(void);
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
int llama_vocab_get_attr(const void *vocab, llama_token token);
int llama_vocab_type(const void *vocab);
int32_t llama_tokenize(const void *vocab, const char *text, int32_t length, llama_token *tokens,
                       int32_t most, bool add_special, bool parse_special);
int32_t llama_token_to_piece(const void *vocab, llama_token token, char *buffer, int32_t length,
                             int32_t lstrip, bool special);
int32_t llama_decode(void *context, llama_batch batch);
float *llama_get_logits_ith(void *context, int32_t row);
float *llama_get_embeddings_ith(void *context, int32_t row);
float *llama_get_embeddings_seq(void *context, llama_seq_id sequence);
void llama_set_causal_attn(void *context, bool is_causal);
void *llama_get_memory(void *context);
bool llama_memory_seq_rm(void *memory, llama_seq_id sequence, llama_pos start, llama_pos end);
void llama_memory_seq_cp(void *memory, llama_seq_id source, llama_seq_id target, llama_pos start,
                         llama_pos end);
int32_t llama_set_adapter_cvec(void *context, const float *data, size_t count, int32_t hidden_size,
                               int32_t first_layer, int32_t last_layer);
void *llama_adapter_lora_init(void *model, const char *path);
int32_t llama_set_adapters_lora(void *context, void **adapters, size_t count, float *scales);
size_t llama_state_seq_get_size(void *context, llama_seq_id sequence);
size_t llama_state_seq_get_data(void *context, uint8_t *data, size_t size, llama_seq_id sequence);
size_t llama_state_seq_set_data(void *context, const uint8_t *data, size_t size, llama_seq_id sequence);
void *llama_sampler_chain_init(struct llama_sampler_chain_params params);
void llama_sampler_chain_add(void *chain, void *sampler);
void *llama_sampler_init_top_k(int32_t k);
void *llama_sampler_init_top_p(float p, size_t min_keep);
void *llama_sampler_init_min_p(float p, size_t min_keep);
void *llama_sampler_init_typical(float p, size_t min_keep);
void *llama_sampler_init_top_n_sigma(float n);
void *llama_sampler_init_xtc(float probability, float threshold, size_t min_keep, uint32_t seed);
void *llama_sampler_init_temp(float temperature);
void *llama_sampler_init_temp_ext(float temperature, float range, float exponent);
void *llama_sampler_init_mirostat(int32_t vocabulary, uint32_t seed, float tau, float eta, int32_t m);
void *llama_sampler_init_mirostat_v2(uint32_t seed, float tau, float eta);
void *llama_sampler_init_dist(uint32_t seed);
void *llama_sampler_init_greedy(void);
void *llama_sampler_init_logit_bias(int32_t vocabulary, int32_t count, const llama_logit_bias *bias);
void *llama_sampler_init(struct llama_sampler_i *interface, void *context);
void llama_sampler_copy(const void *source, void *target);
bool llama_set_sampler(void *context, llama_seq_id sequence, void *chain);
llama_token llama_get_sampled_token_ith(void *context, int32_t row);
float *llama_get_sampled_logits_ith(void *context, int32_t row);
uint32_t llama_get_sampled_logits_count_ith(void *context, int32_t row);
void llama_synchronize(void *context);
llama_token llama_sampler_sample(void *chain, void *context, int32_t row);
void llama_sampler_free(void *sampler);
const char *ggml_get_name(const void *tensor);
int64_t ggml_nelements(const void *tensor);
size_t ggml_nbytes(const void *tensor);
void ggml_backend_tensor_get(const void *tensor, void *data, size_t offset, size_t size);
void *ggml_sum(void *arena, void *tensor);
size_t llama_max_devices(void);
size_t ggml_backend_dev_count(void);
void *ggml_backend_dev_get(size_t number);
const char *ggml_backend_dev_name(void *device);
const char *ggml_backend_dev_description(void *device);
int ggml_backend_dev_type(void *device);
void ggml_backend_dev_memory(void *device, size_t *free, size_t *total);
void *ggml_init(struct ggml_init_params params);
void ggml_free(void *arena);
size_t ggml_tensor_overhead(void);
void *ggml_new_tensor_2d(void *arena, int type, int64_t width, int64_t height);
void *ggml_set_name(void *tensor, const char *name);
void *gguf_init_from_file(const char *path, struct gguf_init_params params);
void *gguf_init_empty(void);
void gguf_free(void *header);
int64_t gguf_find_key(const void *header, const char *key);
int gguf_get_kv_type(const void *header, int64_t number);
const char *gguf_get_val_str(const void *header, int64_t number);
void gguf_set_val_str(void *header, const char *key, const char *value);
void gguf_set_val_f32(void *header, const char *key, float value);
int64_t gguf_get_n_tensors(const void *header);
const char *gguf_get_tensor_name(const void *header, int64_t number);
int gguf_get_tensor_type(const void *header, int64_t number);
const int64_t *gguf_get_tensor_ne(const void *header, int64_t number);
size_t gguf_get_tensor_offset(const void *header, int64_t number);
size_t gguf_get_tensor_size(const void *header, int64_t number);
size_t gguf_get_data_offset(const void *header);
void gguf_set_tensor_type(void *header, const char *name, int type);
void gguf_add_tensor(void *header, const void *tensor);
size_t gguf_get_meta_size(const void *header);
void gguf_get_meta_data(const void *header, void *data);
"""

CPU_FLAGS: Final = ("avx2", "fma", "f16c", "bmi2")
"""What the wheel's kernels are compiled for; without them the first product is an illegal instruction."""

_BUNDLED: Final = "xllamacpp"
_ERROR_LEVEL: Final = 4


def missing_cpu_flags(cpuinfo: str) -> tuple[str, ...]:
    """Which needed flags a /proc/cpuinfo does not list; other systems list none and are not checked."""
    line = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), None)
    if line is None:
        return ()
    present = set(line.split())
    return tuple(flag for flag in CPU_FLAGS if flag not in present)


def library_path() -> Path:
    """GANGLION_LIBLLAMA when set, else what was built here, else the pinned wheel's extension module."""
    override = os.environ.get("GANGLION_LIBLLAMA")
    if override:
        return Path(override)
    built = usable_build(os.environ)
    return bundled_path() if built is None else built.path


def bundled_path() -> Path:
    """The pinned wheel's extension module; raises EngineUnavailable."""
    spec = importlib.util.find_spec(_BUNDLED)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in Path(folder).glob(f"{_BUNDLED}*.so"):
            return path
    raise EngineUnavailable(
        "llama.cpp's library was not found.",
        hint="Install it with: pip install xllamacpp, or build one: ganglion engines build llama --cpu",
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
        self.log_callback: Any = self.ffi.callback("ggml_log_callback", self._on_log)
        self.lib.llama_log_set(self.log_callback, self.ffi.NULL)
        self.lib.llama_backend_init()

    def last_error(self) -> str:
        """What the library last complained of."""
        return self._errors[-1] if self._errors else "no reason given"

    def _on_log(self, level: int, text: Any, _: Any) -> None:
        if level == _ERROR_LEVEL:
            self._errors.append(self.ffi.string(text).decode("utf-8", "replace").strip())
            del self._errors[:-8]

    def _check_symbols(self, path: Path) -> None:
        names = re.findall(r"^[a-z].*?\*?\b((?:llama|ggml|gguf)_\w+)\(", DECLARATIONS, re.MULTILINE)
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
        hint="Reinstall with the pinned version (pip install --force-reinstall xllamacpp), build it again "
        "(ganglion engines list says how), or unset GANGLION_LIBLLAMA.",
        extras={"engine": "llama"},
    )


def open_library(path: Path | None = None) -> Library:
    """Find, load and check the library; typed errors say what is wrong with this machine."""
    chosen = path or library_path()
    if chosen.name.startswith(_BUNDLED) and not os.environ.get("GANGLION_LIBLLAMA"):
        _check_processor()
    return Library(chosen)


def _check_processor() -> None:
    """Raise what the bundled library would crash of."""
    cpuinfo = Path("/proc/cpuinfo")
    missing = missing_cpu_flags(cpuinfo.read_text()) if cpuinfo.exists() else ()
    if missing:
        raise EngineUnavailable(
            f"This CPU lacks {', '.join(missing)}, which the bundled llama.cpp is compiled for.",
            hint="Build llama.cpp for this machine: ganglion engines build llama --cpu (or point "
            "GANGLION_LIBLLAMA at a libllama.so).",
            extras={"engine": "llama"},
        )
