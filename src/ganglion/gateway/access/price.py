"""What tokens cost, in whole millionths of the operator's unit."""

from dataclasses import dataclass

from ganglion.core.events import Usage

PER_TOKENS = 1_000_000
_UNPRICED = 10**18
"""Tokens that any budget has where they cost nothing."""


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """What a million tokens of a model cost, each in millionths of the unit."""

    prompt: int
    completion: int
    cached: int | None = None
    """Of tokens that a prefix cache knew; None for the price of the prompt."""

    def of(self, usage: Usage) -> int:
        """What an answer costs; a part of a millionth counts as a whole one."""
        cached = self.prompt if self.cached is None else self.cached
        fresh_tokens = usage.prompt_tokens - usage.cached_tokens
        total = (
            fresh_tokens * self.prompt
            + usage.cached_tokens * cached
            + usage.completion_tokens * self.completion
        )
        return -(-total // PER_TOKENS)

    def at_most(self, tokens: int) -> int:
        """What so many tokens may cost, whichever they are."""
        return -(-tokens * self._highest // PER_TOKENS)

    def tokens_for(self, cost: int) -> int:
        """How many tokens never cost more than this, whichever they are."""
        return cost * PER_TOKENS // self._highest if self._highest else _UNPRICED

    def or_more(self, other: "TokenPrice") -> "TokenPrice":
        """The higher of both, for each kind of token."""
        cached = max(
            self.prompt if self.cached is None else self.cached,
            other.prompt if other.cached is None else other.cached,
        )
        return TokenPrice(max(self.prompt, other.prompt), max(self.completion, other.completion), cached)

    @property
    def _highest(self) -> int:
        return max(self.prompt, self.completion, self.cached or 0)
