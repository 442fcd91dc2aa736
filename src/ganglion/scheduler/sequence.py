"""One running or waiting token list, as the scheduler sees it."""

from dataclasses import dataclass

from ganglion.scheduler.pictures import Pictures, outside, stretch
from ganglion.scheduler.prefix import Digests, digests
from ganglion.scheduler.prefix_catalogue import SequenceId
from ganglion.scheduler.spans import Spans, first_from


@dataclass(slots=True, eq=False)
class Sequence:
    """Law: `tokens` only grows; how many of them have KV is the pool's to say."""

    id: SequenceId
    salt: str
    tokens: list[int]
    prompt_tokens: int
    max_tokens: int
    priority: int
    arrived_s: float
    chain: Digests = ()
    admitted_s: float | None = None
    cached_tokens: int = 0
    """Prompt tokens whose KV was found when the sequence first ran."""
    preemptions: int = 0
    logit_spans: Spans = ()
    """Positions of the prompt whose logits somebody wants, beside the last one's."""
    readout: Spans = ()
    """Positions whose residual stream somebody wants, of the prompt and of what is generated."""
    read_tokens: int = 0
    """Before this position, nobody wants logits or residuals any more."""
    is_ending: bool = False
    """Whether the last token is run only to be read: nothing is sampled after it."""
    variant: str = ""
    """Which variant of the model runs it, "" for the model itself; sequences of one batch have the same."""
    pictures: Pictures = ()
    """What of the prompt is no token: each has ids below 0, which say what stands there."""

    @classmethod
    def new(
        cls,
        id: SequenceId,  # noqa: A002 - the field's own name
        *,
        salt: str,
        tokens: list[int],
        max_tokens: int,
        priority: int,
        arrived_s: float,
        logit_spans: Spans = (),
        readout: Spans = (),
        variant: str = "",
        pictures: Pictures = (),
    ) -> "Sequence":
        """A sequence that has not run yet."""
        return cls(
            id,
            salt,
            tokens,
            len(tokens),
            max_tokens,
            priority,
            arrived_s,
            digests(salt, tokens),
            logit_spans=logit_spans,
            readout=readout,
            variant=variant,
            pictures=pictures,
        )

    @property
    def reusable(self) -> int:
        """How many leading tokens cached KV may stand for: the rest has to run, to be read."""
        most = len(self.tokens) - 1
        residual = first_from(self.readout, self.read_tokens)
        if residual is not None:
            most = min(most, residual)
        first = first_from(self.logit_spans, self.read_tokens)
        if first is not None:
            most = min(most, first)
        return outside(self.pictures, max(most, 0))

    def stretch(self, held: int) -> int:
        """How many tokens after those that have KV one step may compute; 0 while a picture is not there."""
        return stretch(self.pictures, held, len(self.tokens))

    @property
    def is_scored(self) -> bool:
        """Whether logits of positions that have not run yet are wanted."""
        return first_from(self.logit_spans, self.read_tokens) is not None

    @property
    def is_only_read(self) -> bool:
        """Whether nothing is generated after what is there."""
        return self.max_tokens == 0 or self.is_ending

    @property
    def generated_tokens(self) -> int:
        """How many tokens were sampled so far."""
        return len(self.tokens) - self.prompt_tokens

    def append(self, token: int) -> None:
        """Add a sampled token."""
        self.tokens.append(token)
