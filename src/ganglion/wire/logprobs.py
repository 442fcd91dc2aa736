"""Logprobs in the formats of OpenAI's first wires and of vLLM's extra field."""

from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from ganglion.core.errors import InvalidValue
from ganglion.core.events import Alternative, Token
from ganglion.core.request import Score

_A = TypeVar("_A")
_T = TypeVar("_T")

# JSON has no -inf; clients expect the floor that OpenAI sends for tokens outside the reported ones.
_LOWEST_LOGPROB = -9999.0
MAX_ALTERNATIVES = 20

AlternativeCount = Annotated[int, Meta(ge=-1, le=MAX_ALTERNATIVES, extra_json_schema={"minimum": 0})]
"""How many alternatives; -1 is vLLM's word for the whole vocabulary, and refused by name."""


class PromptLogprob(Struct, frozen=True):
    """One candidate at a place of the prompt; `rank` is null where its server does not tell it."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of the prompt its candidates by id, itself among them; the first has none."""


def json_logprob(logprob: float) -> float:
    """A logprob that JSON can hold."""
    return max(logprob, _LOWEST_LOGPROB)


def token_text(piece: bytes) -> str:
    """A token as text; part of a character shows as U+FFFD."""
    return piece.decode("utf-8", "replace")


def told_logprobs(
    tokens: Iterable[Token],
    kind: Callable[[str, float, list[int], list[_A]], _T],
    alternative: Callable[[str, float, list[int]], _A],
) -> list[_T]:
    """The tokens that have logprobs and the alternatives of each, in the structs of one wire."""
    return [
        kind(
            *_told(token.piece, token.logprob),
            [alternative(*_told(each.piece, each.logprob)) for each in token.top],
        )
        for token in tokens
        if token.logprob is not None
    ]


def _told(piece: bytes, logprob: float) -> tuple[str, float, list[int]]:
    return token_text(piece), json_logprob(logprob), list(piece)


def check_alternatives(count: int, param: str) -> None:
    """Raise where the whole vocabulary is asked for, which is megabytes a token."""
    if count < 0:
        raise InvalidValue(
            f"'{param}' is {count}, which asks for the whole vocabulary; {MAX_ALTERNATIVES} is the most.",
            param=param,
        )


def check_prompt_logprobs(count: int, *, is_streamed: bool) -> None:
    """Raise where prompt logprobs are asked of a stream, which has no place for them."""
    check_alternatives(count, "prompt_logprobs")
    if is_streamed:
        raise InvalidValue(
            "'prompt_logprobs' is only allowed when 'stream' is false.", param="prompt_logprobs"
        )


def prompt_score(count: int) -> Score:
    """The score request of `prompt_logprobs`: at least one alternative, since ranks come with these."""
    return Score(((0, None),), max(count, 1))


def prompt_logprobs_of(tokens: Iterable[Token], count: int) -> PromptLogprobs:
    """The prompt's tokens with `count` alternatives each."""
    return [_candidates(token, count) for token in tokens]


def _candidates(token: Token, count: int) -> dict[str, PromptLogprob] | None:
    if token.logprob is None:
        return None
    own = Alternative(token.id, token.piece, token.logprob)
    ranked = {each.id: (rank, each) for rank, each in enumerate(token.top, start=1)}
    rank = ranked[token.id][0] if token.id in ranked else token.rank
    likeliest = [(place, each) for place, each in ranked.values() if place <= count and each.id != token.id]
    return {
        str(each.id): PromptLogprob(json_logprob(each.logprob), place, token_text(each.piece))
        for place, each in ((rank, own), *likeliest)
    }
