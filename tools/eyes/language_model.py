"""The embedded language model in PyTorch, frozen: what follows a prompt, with gradients for its rows.

Law: weights are the file's, dequantised; only rows that are handed in as vectors learn anything.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys and values of one layer, (heads, tokens, size of a head)."""

    keys: Tensor
    values: Tensor


class LanguageModel:
    """A model of the llama architecture."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)

        def stated(key: str) -> float:
            field = reader.get_field(f"llama.{key}")
            assert field is not None, key
            return float(str(field.contents()))

        tokens = reader.get_field("tokenizer.ggml.tokens")
        assert tokens is not None, "a GGUF of a language model names its tokens"
        self.vocabulary: dict[str, int] = {token: number for number, token in enumerate(tokens.contents())}
        self.layers = int(stated("block_count"))
        self.heads = int(stated("attention.head_count"))
        self.kv_heads = int(stated("attention.head_count_kv"))
        self.width = int(stated("embedding_length"))
        self.rope_base = stated("rope.freq_base")
        self.epsilon = stated("attention.layer_norm_rms_epsilon")
        self._weights = {
            tensor.name: torch.from_numpy(
                np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
            )
            for tensor in reader.tensors
        }
        self.embeddings = self._weights["token_embd.weight"]
        self._half = {name: weight.bfloat16() for name, weight in self._weights.items() if weight.ndim == 2}

    def prefix(self, tokens: list[int]) -> list[Keys]:
        """What a prompt's beginning leaves behind, to be read once."""
        kept: list[Keys] = []
        with torch.no_grad():
            self.states(self.embeddings[tokens][None], [], kept)
        return kept

    def states(self, rows: Tensor, prefix: list[Keys], kept: list[Keys] | None = None) -> Tensor:
        """The last layer's states, normed, of rows (count, tokens, width) that follow the prefix."""
        begun = prefix[0].keys.shape[1] if prefix else 0
        turn = rotation(begun, rows.shape[1], self.width // self.heads, self.rope_base)
        mask = seen(begun, rows.shape[1])
        stream = rows
        for layer in range(self.layers):
            past = prefix[layer] if prefix else None
            stream = stream + self._attention(layer, stream, past, turn, mask, kept)
            normed = self._normed(f"blk.{layer}.ffn_norm.weight", stream)
            gate = functional.silu(self._product(normed, f"blk.{layer}.ffn_gate.weight"))
            widened = gate * self._product(normed, f"blk.{layer}.ffn_up.weight")
            stream = stream + self._product(widened, f"blk.{layer}.ffn_down.weight").float()
        return self._normed("output_norm.weight", stream)

    def logits(self, states: Tensor) -> Tensor:
        """Scores of every token of the vocabulary."""
        return self._product(states, "token_embd.weight").float()

    def _attention(
        self,
        layer: int,
        stream: Tensor,
        past: Keys | None,
        turn: tuple[Tensor, Tensor],
        mask: Tensor,
        kept: list[Keys] | None,
    ) -> Tensor:
        normed = self._normed(f"blk.{layer}.attn_norm.weight", stream)
        count, tokens, _ = normed.shape

        def split(name: str, heads: int) -> Tensor:
            product = self._product(normed, f"blk.{layer}.attn_{name}.weight")
            return product.view(count, tokens, heads, -1).transpose(1, 2)

        query, key = rotated(split("q", self.heads), turn), rotated(split("k", self.kv_heads), turn)
        value = split("v", self.kv_heads)
        if kept is not None:
            kept.append(Keys(key[0], value[0]))
        if past is not None:
            key = torch.cat([past.keys.expand(count, -1, -1, -1), key], 2)
            value = torch.cat([past.values.expand(count, -1, -1, -1), value], 2)
        shared = self.heads // self.kv_heads
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        flat = mixed.transpose(1, 2).reshape(count, tokens, self.width)
        return self._product(flat, f"blk.{layer}.attn_output.weight").float()

    def _product(self, rows: Tensor, name: str) -> Tensor:
        return rows.bfloat16() @ self._half[name].T

    def _normed(self, name: str, stream: Tensor) -> Tensor:
        scale = torch.rsqrt(stream.square().mean(-1, keepdim=True) + self.epsilon)
        return stream * scale * self._weights[name]


def seen(begun: int, tokens: int) -> Tensor:
    """Which positions each new token sees: all of the prefix, and none after itself."""
    return torch.arange(begun + tokens)[None] <= begun + torch.arange(tokens)[:, None]


def rotation(begun: int, tokens: int, size: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of these positions."""
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(begun, begun + tokens)[:, None] * frequencies
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def rotated(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rope: neighbours are the pairs, as the file has its queries and keys."""
    cosines, sines = turn
    even, odd = heads[..., 0::2], heads[..., 1::2]
    return torch.stack([even * cosines - odd * sines, even * sines + odd * cosines], -1).flatten(-2)
