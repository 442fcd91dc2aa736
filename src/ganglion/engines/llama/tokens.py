"""Requests and events as the frames that cross to a worker and back."""

import math
from array import array
from typing import Final

from ganglion.core.engine import ReadoutManifest
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
from ganglion.core.request import Steer, Steering, TokenRequest, salt_of, tenant_of
from ganglion.engines.supervision.ipc import PieceRecord, SequenceEnd, SequenceUpdate, Submit, TokenRecord

STRONGEST: Final = 100.0
"""Beyond a few times the distance between opposites a model only stammers; this is a mistake."""
MOST_STEERS: Final = 64


def check_steering(steering: Steering, manifest: ReadoutManifest | None) -> None:
    """Raise InvalidValue unless the model can be steered so."""
    if not steering:
        return
    if manifest is None:
        raise _refused(
            "This model has no concepts to steer by.", "Load a concept pack with it; ganglion concepts helps."
        )
    if len(steering) > MOST_STEERS:
        raise _refused(f"{len(steering)} concepts are steered at once, and {MOST_STEERS} are allowed.")
    for steer in steering:
        _check_steer(steer, manifest)


def salt_covers_steering(salt: str, steering: Steering) -> bool:
    """Whether a salt keeps what is computed under some steering from everybody who is steered otherwise."""
    return not steering or salt.endswith(salt_of("", steering))


def _check_steer(steer: Steer, manifest: ReadoutManifest) -> None:
    if steer.concept not in manifest.concepts:
        raise _refused(
            f"The concept {steer.concept[:80]!r} is not one of this model's.",
            f"It knows {', '.join(manifest.concepts[:16])}.",
        )
    if not math.isfinite(steer.strength) or abs(steer.strength) > STRONGEST:
        raise _refused(
            f"The strength {steer.strength} is not a number between -{STRONGEST:g} and {STRONGEST:g}.",
            "At 1 the concept moves as far as its examples are from their opposites; try 0.5 to 4.",
        )
    known = [layer for layer in manifest.layers if layer > 0]
    hint = f"Layers {', '.join(map(str, known))} can be steered; leave them out for all of these."
    if steer.layers is None and not known:
        raise _refused("The concepts are of layer 0 alone, which cannot be steered.")
    if steer.layers is not None and not steer.layers:
        raise _refused(f"No layer is named to steer {steer.concept[:80]!r} after.", hint)
    if len(steer.layers or ()) > len(known):
        raise _refused(f"{len(steer.layers or ())} layers are named, and {len(known)} can be steered.", hint)
    for layer in steer.layers or ():
        if layer not in known:
            why = "cannot be steered" if layer == 0 else "is not one of the concepts' layers"
            raise _refused(f"Layer {layer} {why}.", hint)


def _refused(message: str, hint: str | None = None) -> InvalidValue:
    return InvalidValue(message, param="steering", hint=hint)


REASONS: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length"}


def submit_frame(number: int, request: TokenRequest, *, is_deterministic: bool) -> Submit:
    """A request as the worker takes it, under a number of its own."""
    return Submit(
        id=number,
        tokens=list(request.tokens),
        max_tokens=request.max_tokens,
        sampling=request.sampling,
        stop=request.stop,
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
        wants_token_ids=request.wants_token_ids,
        tenant=tenant_of(request.salt),
    )


def events_from(update: SequenceUpdate, started: Started) -> list[TokenEvent]:
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


def _end(end: SequenceEnd, started: Started) -> Finished | Failed:
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
