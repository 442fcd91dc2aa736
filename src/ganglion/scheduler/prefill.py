"""Plans one prefill step: how much of which prompts it computes. It reads the pool and changes nothing."""

from ganglion.scheduler.batch_cut import BatchCut
from ganglion.scheduler.pace import Pace
from ganglion.scheduler.pictures import picture_at
from ganglion.scheduler.pool import KvPool
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.spans import end_of
from ganglion.scheduler.step import Group

PrefillPlan = tuple[list[tuple[Sequence, int]], Group]
"""What each sequence contributes, and the group that they share."""


class Prefill:
    """Cuts prompts into chunks, as far as the pace, the wanted rows and exactness allow."""

    def __init__(self, pool: KvPool, pace: Pace, exact_cut: BatchCut, most_rows: int | None) -> None:
        """`most_rows` bounds the wanted positions of one step, since each costs a row of logits."""
        self._pool = pool
        self._pace = pace
        self._exact_cut = exact_cut
        self._most_rows = pace.largest_chunk if most_rows is None else most_rows

    def group(self, sequence: Sequence) -> Group:
        """The group that a running sequence belongs to."""
        return self._pool.slot(sequence.id).kv_context, sequence.variant

    def cost(self, sequence: Sequence) -> float:
        """What computing the rest of a prompt takes."""
        held = self._pool.held(sequence.id)
        return self._pace.work(len(sequence.tokens) - held, held)

    def can_go_on(self, sequence: Sequence) -> bool:
        """Whether what comes next of a sequence is there: a picture may still be on its way."""
        return not sequence.pictures or sequence.stretch(self._pool.held(sequence.id)) > 0

    def batch(self, pending: list[Sequence], budget: float, largest: int) -> PrefillPlan:
        """What the first of some prompts and those after it in its group contribute.

        Sequences of one batch run side by side only as far as they are equally long, so only the first is
        ever cut, but for where a picture begins or ends.
        """
        first = pending[0]
        group = self.group(first)
        held = self._pool.held(first.id)
        missing = first.stretch(held)
        picture = picture_at(first.pictures, held)
        if picture is not None and picture.is_whole:
            return [(first, missing)], group
        if first.is_scored:
            # Whatever the clock and the others say: see `batch_cut.py`.
            return [(first, self._within_rows(first, self._exact_cut.count(held, missing)))], group
        plan = [(first, self._pace.part(budget, held, missing, largest))]
        room = largest - plan[0][1]
        budget -= self._pace.work(missing, held)
        for sequence in pending[1:]:
            if self.group(sequence) != group or sequence.is_scored:
                continue
            start = self._pool.held(sequence.id)
            other = picture_at(sequence.pictures, start)
            if (other is None) != (picture is None) or (other is not None and other.is_whole):
                continue
            count = sequence.stretch(start)
            cost = self._pace.work(count, start)
            if cost > budget or count > room:
                break
            plan.append((sequence, count))
            budget -= cost
            room -= count
        return plan, group

    def alone(self, sequence: Sequence) -> PrefillPlan:
        """A part of one prompt, cut at fixed positions, whatever the neighbours and the clock do.

        The library computes a lone row with other kernels than several, and a prompt that is one token longer
        than its neighbour in the batch, or than the budget, leaves a lone row behind.
        """
        most = self._pace.largest_chunk
        held = self._pool.held(sequence.id)
        picture = picture_at(sequence.pictures, held)
        count = sequence.stretch(held)
        if picture is None or not picture.is_whole:
            count = min(count, most - held % most)
        return [(sequence, self._within_rows(sequence, count))], self.group(sequence)

    def _within_rows(self, sequence: Sequence, count: int) -> int:
        """How much of a chunk has no more wanted positions than one step may have."""
        start = self._pool.held(sequence.id)
        end = end_of(sequence.logit_spans, max(start, sequence.read_tokens), self._most_rows)
        return count if end is None else min(count, end - start)
