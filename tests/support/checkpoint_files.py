"""A Hugging Face checkpoint with the weights of a GGUF file: one model for two engines.

The weights are dequantised and rounded to bfloat16, so that what the two compute differs by rounding alone.
It reads what the embedded SmolLM2 is: a llama with tied embeddings and a byte-level BPE.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

_BLOCK_TENSORS: Final[Mapping[str, str]] = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_TENSORS: Final[Mapping[str, str]] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_CONTROL: Final = 3
"""The type of a token that is a control token."""

_Weights = npt.NDArray[np.float32]


def write_checkpoint(gguf: Path, folder: Path) -> Path:
    """Write the checkpoint of a GGUF file into a folder, which is made; returns the folder."""
    folder.mkdir(parents=True)
    reader = GGUFReader(gguf)
    tensors = _tensors(reader)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(_config(reader, is_tied="lm_head.weight" not in tensors)))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(reader)))
    (folder / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(reader)))
    return folder


def write_small_checkpoint(gguf: Path, folder: Path, *, heads: int = 4, width: int = 256) -> Path:
    """A small llama of random weights with a GGUF file's tokenizer, whose heads several ranks can share."""
    folder.mkdir(parents=True)
    reader = GGUFReader(gguf)
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": heads}
    sizes |= {"num_key_value_heads": heads // 2, "intermediate_size": 2 * width}
    vocabulary = len(_value(reader, "tokenizer.ggml.tokens"))
    (folder / "config.json").write_text(json.dumps(_config(reader, is_tied=True) | sizes))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(reader)))
    (folder / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(reader)))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocabulary, width), "model.norm": (width,)}
    for block in range(2):
        for name in _BLOCK_TENSORS.values():
            wide = 2 * width if name in ("mlp.gate_proj", "mlp.up_proj") else width
            rows = width // 2 if name in ("self_attn.k_proj", "self_attn.v_proj") else wide
            deep = 2 * width if name == "mlp.down_proj" else width
            shape = (width,) if "layernorm" in name else (rows, deep)
            shapes[f"model.layers.{block}.{name}"] = shape
    chance = np.random.default_rng(7)
    write_safetensors(
        folder / "model.safetensors",
        {
            f"{name}.weight": np.ones(shape, np.float32)
            if len(shape) == 1
            else chance.normal(0.0, 0.05, shape).astype(np.float32)
            for name, shape in shapes.items()
        },
    )
    return folder


def write_safetensors(path: Path, tensors: Mapping[str, _Weights]) -> None:
    """Write tensors as bfloat16."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, weights in tensors.items():
        end = start + 2 * weights.size
        header[name] = {"dtype": "BF16", "shape": list(weights.shape), "data_offsets": [start, end]}
        start = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for weights in tensors.values():
            file.write(bfloat16(weights).tobytes())


def bfloat16(weights: _Weights) -> npt.NDArray[np.uint16]:
    """Numbers rounded to nearest, ties to even, as their 16 bits."""
    bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _value(reader: GGUFReader, key: str) -> Any:
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def _tensors(reader: GGUFReader) -> dict[str, _Weights]:
    heads = {
        "attn_q": _value(reader, "llama.attention.head_count"),
        "attn_k": _value(reader, "llama.attention.head_count_kv"),
    }
    found: dict[str, _Weights] = {}
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        weights = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        stem = tensor.name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, block, part = stem.split(".")
            name = f"model.layers.{block}.{_BLOCK_TENSORS[part]}"
            weights = _unpermuted(weights, heads[part]) if part in heads else weights
        else:
            name = _TOP_TENSORS[stem]
        found[f"{name}.weight"] = weights
    return found


def _unpermuted(weights: _Weights, heads: int) -> _Weights:
    """GGUF interleaves the two halves of each head's rotary pairs; a checkpoint has one after the other."""
    rows, *rest = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2).reshape(weights.shape)


def _config(reader: GGUFReader, *, is_tied: bool) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _value(reader, "llama.embedding_length"),
        "num_hidden_layers": _value(reader, "llama.block_count"),
        "num_attention_heads": _value(reader, "llama.attention.head_count"),
        "num_key_value_heads": _value(reader, "llama.attention.head_count_kv"),
        "intermediate_size": _value(reader, "llama.feed_forward_length"),
        "vocab_size": len(_value(reader, "tokenizer.ggml.tokens")),
        "max_position_embeddings": _value(reader, "llama.context_length"),
        "rope_theta": _value(reader, "llama.rope.freq_base"),
        "rms_norm_eps": _value(reader, "llama.attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "tie_word_embeddings": is_tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": _value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _value(reader, "tokenizer.ggml.eos_token_id"),
    }


def _tokenizer(reader: GGUFReader) -> dict[str, object]:
    tokens: list[str] = _value(reader, "tokenizer.ggml.tokens")
    types: list[int] = _value(reader, "tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in _value(reader, "tokenizer.ggml.merges")],
        },
    }


def _tokenizer_config(reader: GGUFReader) -> dict[str, object]:
    tokens: list[str] = _value(reader, "tokenizer.ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[_value(reader, "tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[_value(reader, "tokenizer.ggml.eos_token_id")],
        "chat_template": _value(reader, "tokenizer.chat_template"),
        "add_bos_token": bool(_value(reader, "tokenizer.ggml.add_bos_token")),
        "model_max_length": _value(reader, "llama.context_length"),
        "clean_up_tokenization_spaces": False,
    }
