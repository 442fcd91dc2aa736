"""Scores: the logprobs of a prompt's tokens at the positions that a client names."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ganglion.core.errors import InvalidValue
from ganglion.core.events import Token
from ganglion.core.fold import Answer
from ganglion.core.request import LEAST_URGENT, MOST_URGENT, Request, Score, TextPrompt, TokenPrompt
from ganglion.wire.decode import decode
from ganglion.wire.fields import ModelName, TokenId
from ganglion.wire.logprobs import token_text
from ganglion.wire.steering import SteeringSpec, steering_of
from ganglion.wire.unknown_fields import refuse_unknown

_MAX_RANGES = 1024
_MAX_TOLD = 2**18
"""Tokens that one answer tells: ranges may overlap, and each tells its own."""
_OPEN_END = 2**32 - 1

_Text = Annotated[str, Meta(min_length=1)]
_Position = Annotated[int, Meta(ge=0, le=_OPEN_END)]


class ScoreBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/score`; a range is half-open, and null or 2^32 - 1 leaves its end open."""

    model: ModelName
    prompt: _Text | Annotated[list[TokenId], Meta(min_length=1, max_length=2**20)]
    score_ranges: Annotated[
        list[tuple[_Position, _Position | None]], Meta(min_length=1, max_length=_MAX_RANGES)
    ]
    top_k: Annotated[int, Meta(ge=0, le=20)] | None = None
    return_tokens: bool | None = None
    steering: SteeringSpec | None = None
    priority: Annotated[int, Meta(ge=MOST_URGENT, le=LEAST_URGENT)] | None = None
    user: str | None = None


class ScoredAlternative(Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a position."""

    id: int
    token: str
    logprob: float


class ScoredToken(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token of the prompt; the one at position 0 has nothing before it and so no logprob."""

    id: int
    token: str
    position: int
    logprob: float | None
    top: list[ScoredAlternative] = []


class ScoredRange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One range, by its place in the request."""

    range_index: int
    total_logprob: float
    tokens: list[ScoredToken] | None = None


class ScoreUsage(Struct, frozen=True, kw_only=True):
    """The tokens of the prompt, and how many of them were cached."""

    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int
    cached_tokens: int


class Scores(Struct, frozen=True, kw_only=True):
    """The answer."""

    id: str
    model: str
    scores: list[ScoredRange]
    usage: ScoreUsage


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """A parsed body."""

    request: Request
    ranges: tuple[tuple[int, int | None], ...]
    has_tokens: bool


_body = msgspec.json.Decoder(ScoreBody)
_encode = msgspec.json.Encoder().encode


def parse(body: bytes, *, request_id: str, tenant: str, is_strict: bool) -> ScoreCall:
    """Read a body, or raise the InvalidRequest that names the first thing wrong with it."""
    fields = decode(_body, body)
    refuse_unknown(body, ScoreBody, is_strict=is_strict)
    return call_of(fields, request_id=request_id, tenant=tenant)


def call_of(fields: ScoreBody, *, request_id: str, tenant: str = "") -> ScoreCall:
    """The call that a body means; raises InvalidValue for a range that ends before it begins."""
    ranges = tuple((start, None if end == _OPEN_END else end) for start, end in fields.score_ranges)
    for place, (start, end) in enumerate(ranges):
        if end is not None and end < start:
            raise InvalidValue(f"The range [{start}, {end}) ends before it begins.", param=_param(place))
    prompt = fields.prompt
    request = Request(
        id=request_id,
        model=fields.model,
        prompt=TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(tuple(prompt)),
        max_tokens=0,
        score=Score(ranges, fields.top_k or 0),
        priority=fields.priority or 0,
        tenant=tenant,
        steering=steering_of(fields.steering or ()),
    )
    return ScoreCall(request, ranges, fields.return_tokens is not False)


def body(answer: Answer, call: ScoreCall) -> bytes:
    """The whole answer; raises InvalidValue where a range lies beyond the prompt."""
    return _encode(scores_of(answer, call))


def scores_of(answer: Answer, call: ScoreCall) -> Scores:
    """The whole answer as a value."""
    usage = answer.finished.usage
    spans = [_span(each, usage.prompt_tokens, place) for place, each in enumerate(call.ranges)]
    told = sum(end - start for start, end in spans)
    if call.has_tokens and told > _MAX_TOLD:
        raise InvalidValue(
            f"The ranges hold {told} tokens together; {_MAX_TOLD} is the most that one answer returns.",
            param="score_ranges",
            hint="Send 'return_tokens': false for the sums alone.",
        )
    by_position = {token.position: token for token in answer.scored}
    scores = [_range(place, span, by_position, call) for place, span in enumerate(spans)]
    counted = ScoreUsage(
        prompt_tokens=usage.prompt_tokens, total_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens
    )
    return Scores(id=call.request.id, model=call.request.model, scores=scores, usage=counted)


def _span(span: tuple[int, int | None], length: int, place: int) -> tuple[int, int]:
    start, end = span[0], length if span[1] is None else span[1]
    if end > length or start > length:
        raise InvalidValue(
            f"The range [{start}, {end}) reaches beyond the prompt's {length} tokens.", param=_param(place)
        )
    return start, end


def _param(place: int) -> str:
    return f"score_ranges[{place}]"


def _range(place: int, span: tuple[int, int], by_position: dict[int, Token], call: ScoreCall) -> ScoredRange:
    tokens = [by_position[position] for position in range(*span)]
    total = sum(token.logprob for token in tokens if token.logprob is not None)
    return ScoredRange(
        range_index=place,
        total_logprob=total,
        tokens=[_token(token) for token in tokens] if call.has_tokens else None,
    )


def _token(token: Token) -> ScoredToken:
    top = [
        ScoredAlternative(id=each.id, token=token_text(each.piece), logprob=each.logprob)
        for each in token.top
    ]
    return ScoredToken(
        id=token.id, token=token_text(token.piece), position=token.position, logprob=token.logprob, top=top
    )
