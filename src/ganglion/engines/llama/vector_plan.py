"""How vectors are made of inputs, and what that may take; decided from the model's own description."""

from dataclasses import dataclass
from typing import Final

from ganglion.core.model import ModelFacts, Pooling

INPUT_TOKENS: Final = 2048
"""The longest input, unless the model's context is shorter."""
RANKED_TOKENS: Final = 512
"""The same where a decoder must read its input in one batch, and each row costs a vocabulary of logits."""
CELL_BYTES: Final = 2.0
COMPUTE_BYTES: Final = 64 * 2**20
"""Buffers besides the logits'."""


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """The context that reads inputs.

    A decoder's tokens see only what came before them, so its inputs are read in pieces and pooled by us:
    the batch stays small, however long the input. What must be seen whole is pooled by the library.
    """

    pooling: Pooling = "mean"
    is_streamed: bool = True
    input_tokens: int = INPUT_TOKENS
    batch: int = 128
    size_bytes: int = 0

    @property
    def cells(self) -> int:
        """Room for an input and for what shares its last batch."""
        return self.input_tokens + self.batch if self.is_streamed else self.batch


def plan_vectors(facts: ModelFacts, context: int, output_rows: int) -> VectorPlan:
    """Decide; `output_rows` is how many rows of logits a batch may have."""
    pooling: Pooling = "mean" if facts.pooling in (None, "none") else facts.pooling
    longest = min(context, facts.context_length, INPUT_TOKENS)
    row_bytes = 2 * 4 * facts.vocabulary_size  # in the graph and in the output
    if not facts.can_generate:
        return VectorPlan(
            pooling, is_streamed=False, input_tokens=longest, batch=longest, size_bytes=COMPUTE_BYTES
        )
    if pooling in ("mean", "last"):
        size_bytes = COMPUTE_BYTES + output_rows * row_bytes
        size_bytes += facts.kv_bytes(longest + output_rows, CELL_BYTES)
        return VectorPlan(
            pooling, is_streamed=True, input_tokens=longest, batch=output_rows, size_bytes=size_bytes
        )
    longest = min(longest, RANKED_TOKENS)
    size_bytes = COMPUTE_BYTES + longest * row_bytes + facts.kv_bytes(longest, CELL_BYTES)
    return VectorPlan(pooling, is_streamed=False, input_tokens=longest, batch=longest, size_bytes=size_bytes)
