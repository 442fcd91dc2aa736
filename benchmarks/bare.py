"""The ceiling: a bare greedy loop over `llama_decode`, without server, scheduler or text.

    python -m benchmarks.bare --threads 2

prints one JSON list: tokens a second by streams and cache layout. The loop has its own declarations, so
that it measures the library and not our binding of it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from random import Random
from statistics import median

import cffi
import numpy as np
import xllamacpp

from benchmarks.prompts import words
from benchmarks.servers import KV_TOKENS, PARALLEL, model_path

PROMPT_TOKENS = 96
"""What a 64-word message is inside the model's chat template, so that both attend to as much."""
OUTPUT_TOKENS = 128

DECLARATIONS = """
typedef int32_t llama_pos; typedef int32_t llama_token; typedef int32_t llama_seq_id;
typedef struct llama_batch { int32_t n_tokens; llama_token *token; float *embd; llama_pos *pos;
    int32_t *n_seq_id; llama_seq_id **seq_id; int8_t *logits; } llama_batch;
typedef void (*ggml_log_callback)(int level, const char *text, void *user_data);
struct llama_model_params { void *devices; void *tensor_buft_overrides; int32_t n_gpu_layers; int split_mode;
    int load_mode; int lazy_mode; int32_t main_gpu; const float *tensor_split; void *progress_callback;
    void *progress_callback_user_data; void *kv_overrides; bool vocab_only; bool check_tensors;
    bool use_extra_bufts; bool no_host; bool no_alloc; bool load_mtp; };
struct llama_context_params { uint32_t n_ctx, n_batch, n_ubatch, n_seq_max, n_rs_seq, n_outputs_max,
    n_outputs_max_per_seq; int32_t n_threads, n_threads_batch;
    int ctx_type, rope_scaling_type, pooling_type, attention_type, flash_attn_type;
    float rope_freq_base, rope_freq_scale, yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
    uint32_t yarn_orig_ctx; float defrag_thold; void *cb_eval; void *cb_eval_user_data; int type_k, type_v;
    size_t moe_cache_size; void *abort_callback; void *abort_callback_data;
    bool embeddings, offload_kqv, no_perf, op_offload, swa_full, kv_unified;
    void *samplers; size_t n_samplers; void *ctx_other; };
void llama_backend_init(void);
void llama_log_set(ggml_log_callback callback, void *user_data);
struct llama_model_params llama_model_default_params(void);
struct llama_context_params llama_context_default_params(void);
void *llama_model_load_from_file(const char *path, struct llama_model_params params);
void *llama_init_from_model(void *model, struct llama_context_params params);
void llama_free(void *context);
const void *llama_model_get_vocab(void *model);
int32_t llama_vocab_n_tokens(const void *vocab);
int32_t llama_tokenize(const void *vocab, const char *text, int32_t length, llama_token *tokens, int32_t room,
    bool add_special, bool parse_special);
int32_t llama_decode(void *context, llama_batch batch);
float *llama_get_logits(void *context);
"""


class Batch:
    """A llama_batch over numpy arrays, filled without a Python loop over tokens."""

    def __init__(self, ffi: cffi.FFI, room: int) -> None:
        self.tokens = np.zeros(room, np.int32)
        self.positions = np.zeros(room, np.int32)
        self.sequences = np.zeros(room, np.int32)
        self.wants_logits = np.zeros(room, np.int8)
        self._counts = np.ones(room, np.int32)
        self._pointers = (self.sequences.ctypes.data + 4 * np.arange(room)).astype(np.uintp)
        self.struct = ffi.new("llama_batch *")
        self.struct.token = ffi.cast("llama_token *", self.tokens.ctypes.data)
        self.struct.embd = ffi.NULL
        self.struct.pos = ffi.cast("llama_pos *", self.positions.ctypes.data)
        self.struct.n_seq_id = ffi.cast("int32_t *", self._counts.ctypes.data)
        self.struct.seq_id = ffi.cast("llama_seq_id **", self._pointers.ctypes.data)
        self.struct.logits = ffi.cast("int8_t *", self.wants_logits.ctypes.data)


class Loop:
    """A loaded model, and greedy decoding of some streams side by side."""

    def __init__(self, path: Path, threads: int) -> None:
        self._ffi = cffi.FFI()
        self._ffi.cdef(DECLARATIONS)
        self._lib = self._ffi.dlopen(str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))))
        self._threads = threads
        self._silence = self._ffi.callback("void(int, const char *, void *)", lambda *_: None)
        self._lib.llama_log_set(self._silence, self._ffi.NULL)
        self._lib.llama_backend_init()
        self._model = self._lib.llama_model_load_from_file(
            str(path).encode(), self._lib.llama_model_default_params()
        )
        if self._model == self._ffi.NULL:
            raise RuntimeError(f"cannot load {path}")
        self._vocab = self._lib.llama_model_get_vocab(self._model)
        self._vocabulary_size = self._lib.llama_vocab_n_tokens(self._vocab)

    def rate(self, streams: int, *, is_unified: bool, output_tokens: int = OUTPUT_TOKENS) -> float:
        """Tokens a second: streams over the median step, argmax included."""
        params = self._lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = KV_TOKENS, PARALLEL, is_unified
        params.n_threads = params.n_threads_batch = self._threads
        context = self._lib.llama_init_from_model(self._model, params)
        if context == self._ffi.NULL:
            raise RuntimeError("cannot make a context")
        try:
            return streams / median(self._steps(context, streams, output_tokens))
        finally:
            self._lib.llama_free(context)

    def _steps(self, context: object, streams: int, output_tokens: int) -> list[float]:
        batch = Batch(self._ffi, PROMPT_TOKENS)
        last = np.zeros(streams, np.int32)
        for stream in range(streams):
            last[stream] = self._prefill(context, batch, stream)
        batch.sequences[:streams] = np.arange(streams)
        batch.wants_logits[:] = 1
        steps: list[float] = []
        for position in range(PROMPT_TOKENS, PROMPT_TOKENS + output_tokens):
            started_s = time.perf_counter()
            batch.tokens[:streams] = last
            batch.positions[:streams] = position
            last = self._decode(context, batch, streams, streams)
            steps.append(time.perf_counter() - started_s)
        return steps

    def _prefill(self, context: object, batch: Batch, stream: int) -> int:
        text = words(Random(stream), PROMPT_TOKENS).encode()
        room = self._ffi.cast("llama_token *", batch.tokens.ctypes.data)
        found = self._lib.llama_tokenize(self._vocab, text, len(text), room, PROMPT_TOKENS, False, False)
        if found != PROMPT_TOKENS:
            raise RuntimeError(f"expected {PROMPT_TOKENS} tokens, the model makes {found} of them")
        batch.positions[:] = np.arange(PROMPT_TOKENS)
        batch.sequences[:] = stream
        batch.wants_logits[:] = 0
        batch.wants_logits[-1] = 1
        return int(self._decode(context, batch, PROMPT_TOKENS, 1)[0])

    def _decode(self, context: object, batch: Batch, tokens: int, outputs: int) -> np.ndarray:
        batch.struct.n_tokens = tokens
        status = self._lib.llama_decode(context, batch.struct[0])
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")
        logits = self._ffi.buffer(self._lib.llama_get_logits(context), outputs * self._vocabulary_size * 4)
        return np.frombuffer(logits, np.float32).reshape(outputs, -1).argmax(axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", type=Path, help="path of a GGUF file; the embedded one when left out")
    parser.add_argument("--output-tokens", type=int, default=OUTPUT_TOKENS)
    arguments = parser.parse_args()
    loop = Loop(arguments.model or model_path(), arguments.threads)
    rates = [
        {
            "streams": streams,
            "cache": "unified" if is_unified else "split",
            "tok_s": loop.rate(streams, is_unified=is_unified, output_tokens=arguments.output_tokens),
        }
        for streams in (1, PARALLEL)
        for is_unified in (False, True)
    ]
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
