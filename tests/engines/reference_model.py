"""A llama-architecture model in numpy: the same weights, dequantised, and nothing of the library's.

Law: it shares no code with what it checks. The file is read by the `gguf` package, the arithmetic is float32
over whole matrices; only the convention of rope's pairs is the file format's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

Floats = npt.NDArray[np.float32]

TEXT = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to "
    "do: once or twice she had peeped into the book."
)
"""Read by all tests that compare, so that the reference reads it once."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that the file states about the model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    rope_base: float
    epsilon: float


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """What one pass over a prompt gave."""

    residuals: Floats
    """[layers, tokens, hidden]: the residual stream after each layer."""
    logits: Floats
    """[tokens, vocabulary]"""

    @property
    def logprobs(self) -> npt.NDArray[np.float64]:
        """[tokens, vocabulary]: the log-softmax of the logits."""
        return log_softmax(self.logits)


class ReferenceModel:
    """A model whose weights are dequantised as they are needed."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        architecture = reader.fields["general.architecture"].contents()
        if architecture != "llama":
            raise ValueError(f"the reference knows llama, and {path.name} is {architecture}")

        def stated(key: str) -> float:
            return float(reader.fields[f"llama.{key}"].contents())

        heads = int(stated("attention.head_count"))
        hidden = int(stated("embedding_length"))
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.shape = Shape(
            layers=int(stated("block_count")),
            hidden=hidden,
            heads=heads,
            kv_heads=int(stated("attention.head_count_kv")),
            head_size=hidden // heads,
            rope_base=stated("rope.freq_base"),
            epsilon=stated("attention.layer_norm_rms_epsilon"),
        )

    def weight(self, name: str, rows: Sequence[int] | slice = slice(None)) -> Floats:
        """A tensor in float32, [out, in] where it is a matrix, or some rows of it."""
        # Without an output matrix of its own, the file means the embedding's.
        tensor = self._tensors["token_embd.weight" if name not in self._tensors else name]
        return dequantize(tensor.data[rows], tensor.tensor_type)

    def forward(self, tokens: Sequence[int]) -> Forward:
        """Run a whole prompt at once."""
        stream = self.embed(tokens)
        residuals = np.empty((self.shape.layers, *stream.shape), np.float32)
        for layer in range(self.shape.layers):
            residuals[layer] = stream = self.after(layer, stream)
        return Forward(residuals, self.logits(stream))

    def embed(self, tokens: Sequence[int]) -> Floats:
        """The residual stream before the first layer."""
        return self.weight("token_embd.weight", list(tokens))

    def after(self, layer: int, stream: Floats) -> Floats:
        """What one layer makes of the stream of a whole prompt."""
        stream = stream + self._attention(layer, stream)
        return stream + self._gated(layer, stream)

    def logits(self, stream: Floats) -> Floats:
        """What follows from the stream after the last layer."""
        return self._product(self._normed("output_norm.weight", stream), "output.weight")

    def _attention(self, layer: int, stream: Floats) -> Floats:
        shape = self.shape
        count = len(stream)
        normed = self._normed(f"blk.{layer}.attn_norm.weight", stream)

        def projected(name: str, heads: int) -> Floats:
            out = self._product(normed, f"blk.{layer}.attn_{name}.weight")
            return out.reshape(count, heads, shape.head_size).swapaxes(0, 1)

        queries = rotated(projected("q", shape.heads), shape.rope_base)
        keys = rotated(projected("k", shape.kv_heads), shape.rope_base)
        shared = shape.heads // shape.kv_heads
        keys, values = (np.repeat(each, shared, axis=0) for each in (keys, projected("v", shape.kv_heads)))
        scores = queries @ keys.swapaxes(1, 2) / np.float32(np.sqrt(shape.head_size))
        scores[:, np.triu(np.ones((count, count), bool), k=1)] = -np.inf
        mixed = np.exp(log_softmax(scores)).astype(np.float32) @ values
        flat = mixed.swapaxes(0, 1).reshape(count, -1)
        return self._product(flat, f"blk.{layer}.attn_output.weight")

    def _gated(self, layer: int, stream: Floats) -> Floats:
        normed = self._normed(f"blk.{layer}.ffn_norm.weight", stream)
        gate, up = (self._product(normed, f"blk.{layer}.ffn_{name}.weight") for name in ("gate", "up"))
        return self._product(gate / (1 + np.exp(-gate)) * up, f"blk.{layer}.ffn_down.weight")

    def _product(self, rows: Floats, name: str) -> Floats:
        return rows @ self.weight(name).T

    def _normed(self, name: str, stream: Floats) -> Floats:
        scale = np.sqrt(np.mean(stream**2, axis=-1, keepdims=True) + np.float32(self.shape.epsilon))
        return stream / scale * self.weight(name)


@cache
def forward_of(path: Path, tokens: tuple[int, ...]) -> Forward:
    """A prompt's pass, computed once for all tests of a process."""
    return ReferenceModel(path).forward(tokens)


def rotated(heads: Floats, base: float) -> Floats:
    """Rope over [heads, tokens, size]: neighbours are the pairs, since the file's Q and K are permuted so."""
    _, count, size = heads.shape
    frequencies = base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    angles = np.arange(count)[:, None] * frequencies
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    even, odd = heads[..., 0::2], heads[..., 1::2]
    turned = np.empty_like(heads)
    turned[..., 0::2] = even * cosines - odd * sines
    turned[..., 1::2] = even * sines + odd * cosines
    return turned


def log_softmax(rows: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Over the last axis, in float64."""
    shifted = rows.astype(np.float64) - rows.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def cosines(left: Floats, right: Floats) -> Floats:
    """Between vectors along the last axis."""
    lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    return (left * right).sum(axis=-1) / lengths
