"""One step: which tokens of which sequences run together in one forward pass."""

from dataclasses import dataclass
from itertools import accumulate

from ganglion.scheduler.prefix_catalogue import SequenceId
from ganglion.scheduler.sequence import Sequence
from ganglion.scheduler.slots import Move
from ganglion.scheduler.spans import Spans, clipped

Group = tuple[int, str]
"""The KV context and the variant of sequences that can share a batch."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens that one sequence contributes to a batch; the last one's logits are wanted at the end."""

    sequence: SequenceId
    start: int
    count: int
    wants_logits: bool
    logit_spans: Spans = ()
    """Other positions of the chunk whose logits are wanted."""
    readout: Spans = ()
    """Positions of the chunk whose residual stream is wanted."""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over one KV context, after its moves."""

    moves: tuple[Move, ...]
    kv_context: int
    chunks: tuple[Chunk, ...]
    is_decode: bool
    is_background: bool = False
    """Whether it runs in the background; steps of other contexts are planned before it is committed."""
    variant: str = ""
    """The variant of the model that it runs, the same for all its sequences."""

    @property
    def tokens(self) -> int:
        """The size of the batch."""
        return sum(chunk.count for chunk in self.chunks)

    def first_rows(self) -> tuple[int, ...]:
        """Where in the batch each chunk begins."""
        return tuple(accumulate((chunk.count for chunk in self.chunks[:-1]), initial=0))


def next_chunk(sequence: Sequence, start: int, count: int) -> Chunk:
    """The next tokens of a sequence, and what of them is wanted and was not read before it was preempted."""
    end, unread = start + count, max(start, sequence.read_tokens)
    return Chunk(
        sequence.id,
        start,
        count,
        wants_logits=end == len(sequence.tokens) and not sequence.is_only_read,
        logit_spans=clipped(sequence.logit_spans, unread, end),
        readout=clipped(sequence.readout, unread, end),
    )
