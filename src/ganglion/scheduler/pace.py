"""Sets how many tokens one step prefills, from the speed that was measured.

Whoever is decoding waits for the whole step, so a step is bounded in time, not in tokens: a short context on
a fast machine takes large chunks, a long one on a slow machine small ones.
"""

SMALLEST_CHUNK = 16
"""Below this the fixed cost of a step dominates."""

TILE = 64
"""Attention kernels work in tiles of this many rows: at long contexts 32 rows take nearly as long as 64."""

_HALF_TILE = TILE // 2
"""Beyond the first tile, half a one is worth its time."""

STRETCH = 1.4
"""How far over its budget a step may go to fill one tile."""

_DOUBLING = 3000.0
"""Tokens of context that make a token about twice as dear; the measured scale corrects what this misses."""

_BACKGROUND = 3.0
"""How many step budgets a step in the background may take: large batches are faster, and few wait for it."""

_BACKGROUND_ALONE = 9.0
"""The same while nobody else is there: deep in a long context 512 rows at once take a seventh less time a
token than 128."""

_FEW_ROWS = 3.5
"""How much dearer looking back is with fewer rows than a tile: these run through the kernel cell by cell."""

_INTERVAL = 10.0
"""Beside a step in the background, cycles begin this many times their decoding apart, so that it gets on."""

LONGEST_INTERVAL = 0.8
"""And never longer than this part of a step budget, so that a stream's gap stays within it."""

_MEMORY = 0.3
"""Weight of the newest measurement."""


class Pace:
    """Turns a time budget into tokens; work is counted in tokens at an empty context."""

    def __init__(
        self,
        step_s: float,
        largest_chunk: int,
        largest_background: int | None = None,
        *,
        first_work: float | None = None,
    ) -> None:
        """`largest_background` is the largest chunk of a step in the background.

        `first_work` is the budget before anything was measured; left out, a tile.
        """
        self._first_work = TILE if first_work is None else first_work
        self._step_s = step_s
        self.largest_chunk = largest_chunk
        self.largest_background = largest_chunk if largest_background is None else largest_background
        self._unit_s: float | None = None
        self._decode_s = 0.0

    def saw_prefill(self, work: float, elapsed_s: float) -> None:
        """Learn from a prefill step.

        Much of a small one is its fixed cost: taken for its tokens' price, it would keep the next ones small.
        """
        if work < SMALLEST_CHUNK:
            return
        each = elapsed_s / work
        if self._unit_s is None:
            self._unit_s = each
        elif work >= TILE or each < self._unit_s:
            self._unit_s += _MEMORY * (each - self._unit_s)

    def saw_decode(self, elapsed_s: float) -> None:
        """Learn from the decode steps of one cycle."""
        self._decode_s += _MEMORY * (elapsed_s - self._decode_s)

    def budget(self, *, is_shared_with_decode: bool) -> float:
        """How much work fits into the next prefill step."""
        if self._unit_s is None:
            return self._first_work
        left_s = self._step_s - (self._decode_s if is_shared_with_decode else 0.0)
        return max(left_s / self._unit_s, SMALLEST_CHUNK)

    def background_budget(self, *, is_alone: bool) -> float:
        """How much work fits into the next step in the background, beside which others may run or wait."""
        if self._unit_s is None:
            return self._first_work
        budgets = _BACKGROUND_ALONE if is_alone else _BACKGROUND
        return max(budgets * self._step_s / self._unit_s, SMALLEST_CHUNK)

    def interval(self, decode_s: float, cycle_s: float) -> float:
        """How long after the beginning of one cycle the next begins, beside a step in the background."""
        return max(min(_INTERVAL * decode_s, LONGEST_INTERVAL * self._step_s), 2 * cycle_s)

    def part(self, budget: float, start: int, missing: int, largest: int) -> int:
        """How many of the tokens missing from position `start` on the next step takes, `largest` at most.

        What is left for the last step is a whole tile, where it can be: fewer rows would take longer.
        """
        is_whole = self.work(missing, start) <= budget
        most = largest if is_whole else min(self._fitting(budget, start), largest)
        if most < missing < most + TILE and most >= 2 * TILE:
            return most - TILE
        return min(missing, most)

    def _fitting(self, budget: float, start: int) -> int:
        """How many tokens from position `start` on fit into a budget, in whole tiles where it can be."""
        fitting = int(budget / self.work(1, start))
        if fitting >= 2 * TILE:
            return fitting // TILE * TILE
        if fitting >= TILE:
            return fitting // _HALF_TILE * _HALF_TILE
        few = max(fitting, SMALLEST_CHUNK)
        if fitting * STRETCH >= TILE or self.work_of_few(few, start) >= self.work(TILE, start):
            return TILE
        return few

    @staticmethod
    def work_of_few(tokens: int, start: int) -> float:
        """What a chunk of less than a tile costs in truth."""
        return tokens * (1.0 + _FEW_ROWS * (start + tokens / 2) / _DOUBLING)

    @staticmethod
    def work(tokens: int, start: int) -> float:
        """What a chunk costs, given what it must look back at."""
        return tokens * (1.0 + (start + tokens / 2) / _DOUBLING)
