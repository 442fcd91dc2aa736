"""Tiny generating models of random weights, one of each kind of attention, as GGUF files."""

from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

WIDTH, INNER, HEADS, CONTEXT, WINDOW = 256, 512, 4, 2048, 64
SIGNS = ["<unk>", "<s>", "</s>"]
WORDS = [*SIGNS, *(f"<0x{byte:02X}>" for byte in range(256))]
KINDS: Final = {"full": "llama", "sliding window": "gemma3", "hybrid": "lfm2"}
"""The architecture that stands for each kind; the last has layers with recurrent state between others."""
COORDINATES: Final = "coordinates"
"""A kind for pictures alone: text has positions as with full attention."""
Q8_0 = GGMLQuantizationType.Q8_0


def write_model(path: Path, kind: str, signs: tuple[str, ...] = ()) -> None:
    """A few layers whose large matrices have 8 bits, so that the library rounds activations too.

    `signs` are further control tokens of its vocabulary.
    """
    architecture = (KINDS | {COORDINATES: "qwen2vl"})[kind]
    layers = 6 if architecture == "gemma3" else 3  # every sixth layer of Gemma 3 sees everything
    chance = np.random.default_rng(5)
    writer = GGUFWriter(str(path), architecture)
    words = [*WORDS, *signs]
    _describe(writer, architecture, layers, words)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = (chance.normal(size=(rows, columns)) / columns**0.5).astype(np.float32)
        writer.add_tensor(f"{name}.weight", quantize(values, Q8_0), raw_dtype=Q8_0)

    def ones(name: str, size: int = WIDTH) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))

    matrix("token_embd", len(words), WIDTH)
    ones("token_embd_norm" if architecture == "lfm2" else "output_norm")
    for layer in range(layers):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm")
        ones(f"{block}.ffn_norm")
        if architecture == "lfm2" and layer != 1:
            matrix(f"{block}.shortconv.in_proj", 3 * WIDTH, WIDTH)
            matrix(f"{block}.shortconv.out_proj", WIDTH, WIDTH)
            kernel = chance.normal(size=(WIDTH, 3)).astype(np.float32)
            writer.add_tensor(f"{block}.shortconv.conv.weight", kernel)
        else:
            for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
                matrix(f"{block}.{part}", WIDTH, WIDTH)
            if architecture == "qwen2vl":
                for part in ("attn_q", "attn_k", "attn_v"):
                    writer.add_tensor(f"{block}.{part}.bias", np.zeros(WIDTH, np.float32))
            elif architecture != "llama":
                ones(f"{block}.attn_q_norm", WIDTH // HEADS)
                ones(f"{block}.attn_k_norm", WIDTH // HEADS)
        if architecture == "gemma3":
            ones(f"{block}.post_attention_norm")
            ones(f"{block}.post_ffw_norm")
        matrix(f"{block}.ffn_gate", INNER, WIDTH)
        matrix(f"{block}.ffn_up", INNER, WIDTH)
        matrix(f"{block}.ffn_down", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: GGUFWriter, architecture: str, layers: int, words: list[str]) -> None:
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_key_length(WIDTH // HEADS)
    writer.add_value_length(WIDTH // HEADS)
    if architecture == "lfm2":
        writer.add_head_count_kv([0, HEADS, 0])
        writer.add_shortconv_l_cache(3)
    else:
        writer.add_head_count_kv(HEADS)
    if architecture == "gemma3":
        writer.add_sliding_window(WINDOW)
    if architecture == "qwen2vl":
        writer.add_rope_dimension_sections([8, 12, 12, 0])
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * len(words))
    writer.add_token_types([2, 3, 3, *[6] * 256, *[3] * (len(words) - len(WORDS))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
