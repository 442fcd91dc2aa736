"""One running or waiting token list, as the scheduler sees it."""

from dataclasses import dataclass

from ganglion.scheduler.catalogue import SequenceId
from ganglion.scheduler.prefix import Digests, digests


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
    ) -> "Sequence":
        """A sequence that has not run yet."""
        return cls(id, salt, tokens, len(tokens), max_tokens, priority, arrived_s, digests(salt, tokens))

    @property
    def generated_tokens(self) -> int:
        """How many tokens were sampled so far."""
        return len(self.tokens) - self.prompt_tokens

    def append(self, token: int) -> None:
        """Add a sampled token."""
        self.tokens.append(token)
