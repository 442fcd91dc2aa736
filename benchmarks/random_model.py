"""A GGUF file of random weights in a real model's shape: what is multiplied does not matter to the clock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from benchmarks.servers import model_path

_TEMPLATE: Final = "{% for message in messages %}{{ message.content }}{% endfor %}"
_TILE: Final = 1 << 22
"""Weights that are drawn; more are the same again."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama."""

    name: str
    width: int
    blocks: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    context: int = 131072

    @property
    def matrices(self) -> list[tuple[str, int, int]]:
        """Name, rows and columns of every matrix."""
        width, kv = self.width, self.width // self.heads * self.kv_heads
        found = [("token_embd", self.vocabulary, width), ("output", self.vocabulary, width)]
        for block in range(self.blocks):
            found += [
                (f"blk.{block}.attn_q", width, width),
                (f"blk.{block}.attn_k", kv, width),
                (f"blk.{block}.attn_v", kv, width),
                (f"blk.{block}.attn_output", width, width),
                (f"blk.{block}.ffn_gate", self.inner, width),
                (f"blk.{block}.ffn_up", self.inner, width),
                (f"blk.{block}.ffn_down", width, self.inner),
            ]
        return found

    @property
    def norms(self) -> list[str]:
        """The names of what scales a row."""
        return ["output_norm", *(f"blk.{each}.{part}" for each in range(self.blocks) for part in _NORMS)]


_NORMS: Final = ("attn_norm", "ffn_norm")
EIGHT_BILLION: Final = Shape("random-8b", 4096, 32, 32, 8, 14336, 128256)
TINY: Final = Shape("random-tiny", 64, 2, 4, 2, 128, 49152)


def write_random_model(path: Path, shape: Shape) -> None:
    """Write it in bf16, with the embedded model's tokens and made-up ones up to the vocabulary's size."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name(shape.name)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.blocks)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(32)
    writer.add_chat_template(_TEMPLATE)
    _add_tokens(writer, shape.vocabulary)
    _write_weights(writer, shape)


def _add_tokens(writer: Any, size: int) -> None:
    fields = gguf.GGUFReader(str(model_path())).fields
    tokens = list(fields["tokenizer.ggml.tokens"].contents())
    kinds = list(fields["tokenizer.ggml.token_type"].contents())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*tokens, *(f"\u0120w{number}" for number in range(len(tokens), size))])
    writer.add_token_types([*kinds, *[1] * (size - len(kinds))])
    writer.add_token_merges(list(fields["tokenizer.ggml.merges"].contents()))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def _write_weights(writer: Any, shape: Shape) -> None:
    """One tensor after the other: a whole model would not fit into every machine's memory."""
    drawn = np.random.default_rng(0).standard_normal(_TILE, dtype=np.float32) * 0.02
    tile = (drawn.view(np.uint32) >> 16).astype(np.uint16)
    for name, rows, columns in shape.matrices:
        size = rows * columns * 2
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor_info(
            f"{name}.weight", (rows, columns * 2), np.dtype(np.uint8), size, raw_dtype=kind
        )
    for name in shape.norms:
        writer.add_tensor_info(f"{name}.weight", (shape.width,), np.dtype(np.float32), shape.width * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, rows, columns in shape.matrices:
        writer.write_tensor_data(np.resize(tile, rows * columns).view(np.uint8))
    for _ in shape.norms:
        writer.write_tensor_data(np.ones(shape.width, np.float32))
    writer.close()
