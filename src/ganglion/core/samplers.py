"""Ways to choose the next token that few ask for: each default leaves the choice as it is.

The names are those that llama-server, vLLM and Ollama give them, and what a wire's field is called.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Samplers:
    """What is asked besides temperature, penalties and the usual cuts."""

    repeat_last_n: int = -1
    """How many of the last tokens the penalties see: -1 all of them, 0 none."""
    typical_p: float = 1.0
    """Keep the tokens whose surprise is nearest to the expected one, up to this much probability."""
    top_n_sigma: float = -1.0
    """Keep what lies within so many standard deviations of the best logit; 0 and below keep all."""
    xtc_probability: float = 0.0
    """How often the likeliest tokens are left out, but for the last of those above the threshold."""
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    """How hard a token is punished that would prolong a repetition; 0 does not."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    """How many of the last tokens are searched for what repeats: -1 all that are kept, 0 none."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """Texts across which nothing counts as a repetition."""
    mirostat: Literal[0, 1, 2] = 0
    """Choose so that the surprise stays near tau, in place of every cut."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    """How far the temperature may move either way, by how sure the model is."""
    dynatemp_exponent: float = 1.0
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may be chosen; None allows all."""

    @property
    def has_dry(self) -> bool:
        """Whether repetitions are punished."""
        return self.dry_multiplier > 0.0 and self.dry_base >= 1.0 and self.dry_penalty_last_n != 0

    @property
    def draws(self) -> bool:
        """Whether something may choose another token than the likeliest even at temperature 0."""
        return bool(
            self.mirostat or self.typical_p < 1.0 or self.xtc_probability > 0.0 or self.dynatemp_range > 0.0
        )


PLAIN = Samplers()
"""Nothing special is asked."""
