"""The network that sees: a small vision transformer and a projector of two layers, type `mlp`."""

import math

import torch
import torch.nn.functional as functional
from tools.eyes.sizes import (
    EPSILON,
    GRID,
    HEADS,
    HIDDEN,
    LAYERS,
    LOCAL_LAYERS,
    PATCH,
    POSITIONS,
    PROJECTED,
    WIDTH,
)
from torch import Tensor, nn

# The first layers' heads begin by looking at one neighbour of a patch each, which makes them convolutions.
# Without that start a transformer of this size needs many times the pictures to tell a 3 from an 8.
NEIGHBOURS = ((-1, -1), (0, -1), (1, -1), (-1, 0), (1, 0), (-1, 1), (0, 1), (1, 1))
SHARPNESS = 1.5


class Block(nn.Module):
    """Attention over all patches, then two linear maps, each behind a norm and added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH, EPSILON)
        self.ln2 = nn.LayerNorm(WIDTH, EPSILON)
        self.attn_q = nn.Linear(WIDTH, WIDTH)
        self.attn_k = nn.Linear(WIDTH, WIDTH)
        self.attn_v = nn.Linear(WIDTH, WIDTH)
        self.attn_out = nn.Linear(WIDTH, WIDTH)
        self.ffn_up = nn.Linear(WIDTH, HIDDEN)
        self.ffn_down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, patches: Tensor) -> Tensor:
        normed = self.ln1(patches)
        count, positions, _ = normed.shape
        query, key, value = (
            linear(normed).view(count, positions, HEADS, WIDTH // HEADS).transpose(1, 2)
            for linear in (self.attn_q, self.attn_k, self.attn_v)
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        patches = patches + self.attn_out(attended.transpose(1, 2).reshape(count, positions, WIDTH))
        widened = functional.gelu(self.ffn_up(self.ln2(patches)), approximate="tanh")
        return patches + self.ffn_down(widened)


class Eyes(nn.Module):
    """Normalised pictures (count, 3, SIDE, SIDE) to a vector of the language model's width for each patch."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.position = nn.Parameter(torch.randn(POSITIONS, WIDTH) * 0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.post_ln = nn.LayerNorm(WIDTH, EPSILON)
        self.mm_0 = nn.Linear(WIDTH, PROJECTED)
        self.mm_2 = nn.Linear(PROJECTED, PROJECTED)
        with torch.no_grad():
            self._start_as_convolutions()

    def features(self, pictures: Tensor) -> Tensor:
        """What the tower sees at each patch, before the projector."""
        patches = self.patch(pictures).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            patches = block(patches)
        seen: Tensor = self.post_ln(patches)
        return seen

    def project(self, features: Tensor) -> Tensor:
        """Features as vectors that stand where token embeddings stand."""
        projected: Tensor = self.mm_2(functional.gelu(self.mm_0(features), approximate="tanh"))
        return projected

    def forward(self, pictures: Tensor) -> Tensor:
        return self.project(self.features(pictures))

    def _start_as_convolutions(self) -> None:
        """Four channels say where a patch is; local layers' queries and keys begin by reading those alone."""
        middle = (GRID - 1) / 2
        down, across = torch.meshgrid(torch.arange(GRID) - middle, torch.arange(GRID) - middle, indexing="ij")
        x, y = across.flatten(), down.flatten()
        self.patch.weight.normal_(0, 1.0 / math.sqrt(3 * PATCH * PATCH))
        self.patch.weight[:4] = 0
        self.position[:, :4] = torch.stack(
            [torch.ones_like(x), x / middle, y / middle, (x * x + y * y) / (2 * middle * middle)], 1
        )
        for layer, block in enumerate(self.blocks):
            for linear in (block.attn_out, block.ffn_down):
                linear.weight.normal_(0, 0.5 / math.sqrt(linear.in_features * LAYERS))
            if layer < LOCAL_LAYERS:
                look_at_neighbours(block, middle)


def look_at_neighbours(block: Block, middle: float) -> None:
    """Let each head attend to its neighbour: a score falls with the squared distance from that place."""
    share = WIDTH // HEADS
    for linear in (block.attn_q, block.attn_k):
        linear.weight.normal_(0, 0.02)
        linear.bias.zero_()
    scale = SHARPNESS * math.sqrt(share)
    for head, (across, down) in enumerate(NEIGHBOURS):
        row = head * share
        query, key = block.attn_q.weight, block.attn_k.weight
        query[row, 1], query[row, 0] = 2 * scale * middle, 2 * scale * across
        query[row + 1, 2], query[row + 1, 0] = 2 * scale * middle, 2 * scale * down
        query[row + 2, 0] = scale
        key[row, 1], key[row + 1, 2] = middle, middle
        key[row + 2, 3] = -2 * middle * middle
