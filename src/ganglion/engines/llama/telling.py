"""Requests and events as the frames that cross to a worker and back."""

from array import array
from typing import Final

from ganglion.core.errors import EngineFailed, InvalidValue, Overloaded
from ganglion.core.events import (
    Alternative,
    Failed,
    Finished,
    FinishReason,
    Piece,
    Pieces,
    Progress,
    Scored,
    Started,
    Timing,
    Token,
    TokenEvent,
    Usage,
)
from ganglion.core.request import TokenRequest, tenant_of
from ganglion.core.samplers import PLAIN
from ganglion.engines.ipc import End, PieceRecord, Submit, TokenRecord, Update

REASONS: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length"}


def submit_of(number: int, request: TokenRequest, *, is_deterministic: bool) -> Submit:
    """A request as the worker takes it, under a number of its own."""
    sampling = request.sampling
    return Submit(
        id=number,
        tokens=list(request.tokens),
        max_tokens=request.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed,
        logit_bias=list(sampling.logit_bias),
        stop_strings=list(request.stop.strings),
        stop_tokens=list(request.stop.token_ids),
        ignore_eos=request.stop.ignore_eos,
        top_logprobs=request.top_logprobs,
        priority=request.priority,
        # What a neighbour left in the cache was cut elsewhere; only a sequence's own KV is exactly its own.
        salt=f"{request.salt}/{number}" if is_deterministic else request.salt,
        min_tokens=request.min_tokens,
        grammar=request.grammar,
        score_ranges=list(request.score.ranges) if request.score is not None else [],
        score_top=request.score.top if request.score is not None else 0,
        in_tokens=request.in_tokens,
        readout_ranges=list(request.readout),
        steering=[
            (steer.concept, steer.strength, None if steer.layers is None else list(steer.layers))
            for steer in request.steering
        ],
        samplers=None if sampling.samplers == PLAIN else sampling.samplers,
        shows_stop=request.stop.is_shown,
        wants_token_ids=request.wants_token_ids,
        tenant=tenant_of(request.salt),
    )


def events_of(update: Update, started: Started) -> list[TokenEvent]:
    """What an update says, in the words of the event stream."""
    events: list[TokenEvent] = []
    if update.started is not None:
        started = Started(*update.started)
        events.append(started)
    if update.prefilled is not None:
        events.append(Progress("prefilled", *update.prefilled))
    if update.scored:
        events.append(Scored(tuple(_token(record) for record in update.scored)))
    if update.pieces:
        events.append(Pieces(tuple(_piece(record) for record in update.pieces)))
    if update.end is not None:
        events.append(_end(update.end, started))
    return events


def _end(end: End, started: Started) -> Finished | Failed:
    if end.error is not None and end.code == InvalidValue.code:
        return Failed(InvalidValue(end.error, param="response_format"))
    if end.error is not None and end.code == Overloaded.code:
        return Failed(Overloaded(end.error, hint="Retry in a moment."))
    if end.error is not None:
        return Failed(EngineFailed(end.error))
    usage = Usage(started.prompt_tokens, end.completion_tokens, started.cached_tokens)
    timing = Timing(end.queued_s, end.prefill_s, end.decode_s)
    token_ids = None if end.token_ids is None else tuple(end.token_ids)
    return Finished(REASONS[end.reason], usage, timing, end.stop_sequence, end.stop_token, token_ids)


def _piece(record: PieceRecord) -> Piece:
    return Piece(record.text, tuple(_token(token) for token in record.tokens), record.is_special)


def _token(record: TokenRecord) -> Token:
    top = tuple(Alternative(*each) for each in record.top)
    readout = tuple(array("f", record.readout)) if record.readout else ()
    return Token(record.id, record.piece, record.position, record.logprob, top, readout, record.rank)
