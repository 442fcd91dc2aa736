"""How many tokens to prefill in one step, from the speed that was measured.

Whoever is decoding waits for the whole step, so a step is bounded in time, not in tokens: a short context on
a fast machine takes large chunks, a long one on a slow machine small ones.
"""

SMALLEST_CHUNK = 16
"""Below this the fixed cost of a step dominates."""

MEMORY = 0.3
"""Weight of the newest measurement; a step near the end of a long prompt is slower than one at its start."""


class Pace:
    """Turns a time budget into a number of tokens."""

    def __init__(self, step_s: float, largest_chunk: int) -> None:
        self._step_s = step_s
        self._largest_chunk = largest_chunk
        self._prefill_token_s: float | None = None
        self._decode_step_s = 0.0

    def saw_prefill(self, tokens: int, elapsed_s: float) -> None:
        """Learn from a prefill step."""
        if tokens >= SMALLEST_CHUNK:
            each = elapsed_s / tokens
            old = self._prefill_token_s
            self._prefill_token_s = each if old is None else old + MEMORY * (each - old)

    def saw_decode(self, elapsed_s: float) -> None:
        """Learn from the decode steps of one cycle."""
        self._decode_step_s += MEMORY * (elapsed_s - self._decode_step_s)

    def chunk(self, *, is_shared_with_decode: bool) -> int:
        """How many tokens fit into the next prefill step."""
        if self._prefill_token_s is None:
            return min(4 * SMALLEST_CHUNK, self._largest_chunk)
        budget_s = self._step_s - (self._decode_step_s if is_shared_with_decode else 0.0)
        fitting = int(budget_s / self._prefill_token_s)
        return max(SMALLEST_CHUNK, min(fitting, self._largest_chunk))
