"""The frames between whoever reads residuals and the child that has the model, in msgpack."""

from typing import Final, Literal

import msgspec

LARGEST_TEXT_TOKENS: Final = 512
"""Of a longer text the first so many are read: a concept shows in a sentence or nowhere."""

Pool = Literal["mean", "last"]


class ReadResiduals(msgspec.Struct, frozen=True, tag="read"):
    """The one question: these texts, after these layers."""

    path: str
    texts: list[str]
    layers: list[int] | None
    """None is every layer that can be read."""
    pool: Pool
    threads: int
    gpu_layers: int


class ResidualsOpened(msgspec.Struct, frozen=True, tag="opened"):
    """The model is there; one `Residual` for each text follows, in their order."""

    architecture: str
    hidden_size: int
    block_count: int
    layers: list[int]


class Residual(msgspec.Struct, frozen=True, tag="residual"):
    """What was read of one text: float32 `[layers, hidden]`."""

    values: bytes
    tokens: int
    is_cut: bool


class ResidualsRefusal(msgspec.Struct, frozen=True, tag="refused"):
    """Nothing more comes: an error of the tree, by its code."""

    code: str
    message: str
    hint: str | None


ResidualFrame = ResidualsOpened | Residual | ResidualsRefusal
