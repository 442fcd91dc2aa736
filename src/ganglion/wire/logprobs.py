"""Tokens' probabilities as OpenAI's first wires and vLLM's extra field tell them."""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from ganglion.core.errors import InvalidValue
from ganglion.core.events import Alternative, Token

# JSON has no -inf; clients expect the floor that OpenAI sends for tokens outside the reported ones.
LOWEST_LOGPROB = -9999.0
MAX_ALTERNATIVES = 20

AlternativeCount = Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)]


class PromptLogprob(Struct, frozen=True):
    """One candidate at a place of the prompt; `rank` is null where it was not among the likeliest."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of the prompt its candidates by id, itself among them; the first has none."""


def told(logprob: float) -> float:
    """A logprob that JSON can hold."""
    return max(logprob, LOWEST_LOGPROB)


def shown(piece: bytes) -> str:
    """A token as text; part of a character shows as U+FFFD."""
    return piece.decode("utf-8", "replace")


def check_prompt_logprobs(count: int | None, *, is_streamed: bool) -> None:
    """Raise where prompt logprobs are asked of a stream, which has no place for them."""
    if count is not None and is_streamed:
        raise InvalidValue(
            "'prompt_logprobs' is only allowed when 'stream' is false.", param="prompt_logprobs"
        )


def prompt_logprobs_of(tokens: Iterable[Token], count: int) -> PromptLogprobs:
    """The prompt's tokens with `count` alternatives each."""
    return [_candidates(token, count) for token in tokens]


def _candidates(token: Token, count: int) -> dict[str, PromptLogprob] | None:
    if token.logprob is None:
        return None
    own = Alternative(token.id, token.piece, token.logprob)
    ranked = {each.id: (rank, each) for rank, each in enumerate(token.top, start=1)}
    rank = ranked[token.id][0] if token.id in ranked else None
    likeliest = [(place, each) for place, each in ranked.values() if place <= count and each.id != token.id]
    return {
        str(each.id): PromptLogprob(told(each.logprob), place, shown(each.piece))
        for place, each in ((rank, own), *likeliest)
    }
