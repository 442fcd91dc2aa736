"""What a projector file of type `mlp` makes of a picture, computed from its weights with numpy alone."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float32]
# What llama.cpp fills the rest with when a picture is not square.
BORDER = (122, 116, 104)


@dataclass(frozen=True, slots=True)
class SmallTower:
    """A projector file in memory."""

    tensors: dict[str, Floats]
    side: int
    patch: int
    layers: int
    heads: int
    mean: Floats
    deviation: Floats
    epsilon: float

    @classmethod
    def read(cls, path: Path) -> "SmallTower":
        reader = GGUFReader(path)

        def fact(name: str) -> object:
            field = reader.get_field(f"clip.vision.{name}")
            assert field is not None, name
            return field.contents()

        return cls(
            {t.name: np.asarray(t.data, np.float32) for t in reader.tensors},
            int(str(fact("image_size"))),
            int(str(fact("patch_size"))),
            int(str(fact("block_count"))),
            int(str(fact("attention.head_count"))),
            np.array(fact("image_mean"), np.float32),
            np.array(fact("image_std"), np.float32),
            float(str(fact("attention.layer_norm_epsilon"))),
        )

    def embed(self, picture: Image.Image) -> Floats:
        """One vector for each patch, in the language model's width."""
        pixels = np.asarray(fitted(picture, self.side), np.float32) / 255
        grid = self.side // self.patch
        normal = ((pixels - self.mean) / self.deviation).reshape(grid, self.patch, grid, self.patch, 3)
        # The convolution's weights lie as (width, colour, row, column).
        patches = normal.transpose(0, 2, 4, 1, 3).reshape(grid * grid, -1)
        kernel = self.tensors["v.patch_embd.weight"]
        seen: Floats = np.asarray(patches @ kernel.reshape(len(kernel), -1).T, np.float32)
        seen = seen + self.tensors["v.patch_embd.bias"] + self.tensors["v.position_embd.weight"]
        for layer in range(self.layers):
            seen = seen + self._attention(f"v.blk.{layer}", seen)
            widened = gelu(self._linear(f"v.blk.{layer}.ffn_up", self._norm(f"v.blk.{layer}.ln2", seen)))
            seen = seen + self._linear(f"v.blk.{layer}.ffn_down", widened)
        seen = self._norm("v.post_ln", seen)
        return self._linear("mm.2", gelu(self._linear("mm.0", seen)))

    def _attention(self, block: str, seen: Floats) -> Floats:
        normed = self._norm(f"{block}.ln1", seen)
        query, key, value = (
            self._linear(f"{block}.attn_{name}", normed).reshape(len(seen), self.heads, -1).transpose(1, 0, 2)
            for name in "qkv"
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (weights / weights.sum(-1, keepdims=True)) @ value
        return self._linear(f"{block}.attn_out", attended.transpose(1, 0, 2).reshape(len(seen), -1))

    def _linear(self, name: str, values: Floats) -> Floats:
        return values @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def _norm(self, name: str, values: Floats) -> Floats:
        centred = values - values.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.epsilon)
        return np.asarray(scaled * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"], np.float32)


def gelu(values: Floats) -> Floats:
    """The approximation by tanh, which is llama.cpp's."""
    inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)
    bent: Floats = np.asarray(0.5 * values * (1 + np.tanh(inner)), np.float32)
    return bent


def fitted(picture: Image.Image, side: int) -> Image.Image:
    """As large as the tower takes it; a picture that is not square keeps its shape, with a border."""
    scale = side / max(picture.size)
    width, height = (min(side, int(np.ceil(length * scale))) for length in picture.size)
    whole = Image.new("RGB", (side, side), BORDER)
    whole.paste(
        picture.resize((width, height), Image.Resampling.BICUBIC), ((side - width) // 2, (side - height) // 2)
    )
    return whole
