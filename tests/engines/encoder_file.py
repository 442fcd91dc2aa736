"""A tiny encoder with random weights as a GGUF file: BERT of two layers, for what only embeds or ranks."""

import struct
from pathlib import Path

import numpy as np

from support.model_files import ARRAY, Entry, number, real, string, strings, text

SIZE, LAYERS, HEADS, INNER, CONTEXT = 32, 2, 2, 64, 128
SIGNS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SIGNS, "▁red", "▁green", "▁blue", "▁cat", "▁dog"]


def write_encoder(path: Path, *, pooling: int) -> None:
    """Pooling is llama.cpp's number: 1 mean, 2 first token, 4 a rank."""
    chance = np.random.default_rng(3)
    tensors: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int, is_norm: bool = False) -> None:
        values = np.ones(shape) if is_norm else chance.normal(scale=0.3, size=shape)
        tensors[name] = values.astype(np.float32)

    def linear(name: str, out: int, into: int) -> None:
        add(f"{name}.weight", out, into)
        add(f"{name}.bias", out)

    def norm(name: str) -> None:
        add(f"{name}.weight", SIZE, is_norm=True)
        add(f"{name}.bias", SIZE)

    add("token_embd.weight", len(WORDS), SIZE)
    add("token_types.weight", 2, SIZE)
    add("position_embd.weight", CONTEXT, SIZE)
    norm("token_embd_norm")
    for layer in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            linear(f"blk.{layer}.{part}", SIZE, SIZE)
        norm(f"blk.{layer}.attn_output_norm")
        linear(f"blk.{layer}.ffn_up", INNER, SIZE)
        linear(f"blk.{layer}.ffn_down", SIZE, INNER)
        norm(f"blk.{layer}.layer_output_norm")
    if pooling == 4:
        linear("cls", SIZE, SIZE)
        linear("cls.output", 1, SIZE)
    path.write_bytes(_gguf(_entries(pooling), tensors))


def _entries(pooling: int) -> list[Entry]:
    types = struct.pack(f"<IQ{len(WORDS)}i", 5, len(WORDS), *([3] * 5 + [1] * (len(WORDS) - 5)))
    return [
        string("general.architecture", "bert"),
        string("general.name", "Tiny encoder"),
        number("bert.block_count", LAYERS),
        number("bert.context_length", CONTEXT),
        number("bert.embedding_length", SIZE),
        number("bert.feed_forward_length", INNER),
        number("bert.attention.head_count", HEADS),
        real("bert.attention.layer_norm_epsilon", 1e-12),
        ("bert.attention.causal", 7, b"\0"),
        number("bert.pooling_type", pooling),
        string("tokenizer.ggml.model", "bert"),
        strings("tokenizer.ggml.tokens", WORDS),
        ("tokenizer.ggml.token_type", ARRAY, types),
        number("tokenizer.ggml.token_type_count", 2),
        number("tokenizer.ggml.bos_token_id", 2),
        number("tokenizer.ggml.eos_token_id", 3),
        number("tokenizer.ggml.cls_token_id", 2),
        number("tokenizer.ggml.seperator_token_id", 3),
        number("tokenizer.ggml.unknown_token_id", 1),
        number("tokenizer.ggml.padding_token_id", 0),
    ]


def _gguf(entries: list[Entry], tensors: dict[str, np.ndarray]) -> bytes:
    metadata = b"".join(text(key) + struct.pack("<I", kind) + raw for key, kind, raw in entries)
    infos, weights = b"", b""
    for name, values in tensors.items():
        shape = values.shape[::-1]
        infos += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", 0, len(weights))
        data = values.tobytes()
        weights += data + bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + metadata + infos
    return head + bytes(-len(head) % 32) + weights
