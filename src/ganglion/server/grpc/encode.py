"""The encoding of session results as messages of `salience.v1`."""

from collections.abc import Iterable, Iterator
from typing import Final, assert_never

from ganglion.core.engine import ReadoutManifest
from ganglion.core.events import Alternative, Progress, Token
from ganglion.core.request import Steering
from ganglion.sessions.values import GenerationDone, OpenedSession, SessionEvent, SessionSummary, SessionToken
from ganglion.wire.salience import salience_pb2 as pb

_CHUNK_BYTES: Final = 2**20
"""Of a saved session in one message: well under what clients take by default, 4 MiB."""


def opened(value: OpenedSession) -> pb.OpenSessionResponse:
    """A fresh session."""
    return pb.OpenSessionResponse(
        session_id=value.session_id,
        model=value.model,
        context_length=value.context_length,
        vocab_size=value.vocabulary_size,
        readout=None if value.readout is None else manifest(value.model, value.readout),
        ttl_s=value.ttl_s,
        end_token_ids=value.end_ids,
    )


def manifest(model: str, readout: ReadoutManifest) -> pb.ReadoutManifest:
    """The readouts of a model."""
    return pb.ReadoutManifest(model=model, concepts=readout.concepts, layers=readout.layers)


def event(value: SessionEvent) -> pb.GenerateEvent:
    """One event of a stream."""
    match value:
        case SessionToken(token=each, is_prefill=is_prefill):
            return pb.GenerateEvent(token=token(each, is_prefill=is_prefill))
        case Progress(done=prefilled, total=total):
            return pb.GenerateEvent(progress=pb.Progress(prefilled=prefilled, total=total))
        case GenerationDone():
            return pb.GenerateEvent(
                done=pb.Done(
                    prompt_tokens=value.prompt_tokens,
                    completion_tokens=value.completion_tokens,
                    cached_tokens=value.cached_tokens,
                    total_tokens=value.total_tokens,
                    finish_reason=value.reason,
                    stop_token=value.stop_token,
                    stop_text=value.stop_text,
                    stop_start=value.stop_start,
                )
            )
        case _:
            assert_never(value)


def token(value: Token, *, is_prefill: bool) -> pb.Token:
    """One token, with what was requested at its position."""
    return pb.Token(
        id=value.id,
        is_prefill=is_prefill,
        position=value.position,
        sampled_logprob=value.logprob,
        top=_alternatives(value.top) if value.top else None,
        readout=value.readout or None,
        piece=value.piece,
    )


def _alternatives(top: Iterable[Alternative]) -> list[pb.Alternative]:
    return [pb.Alternative(id=each.id, logprob=each.logprob, piece=each.piece) for each in top]


def sessions(values: Iterable[SessionSummary]) -> pb.ListSessionsResponse:
    """A tenant's sessions."""
    return pb.ListSessionsResponse(sessions=[_session(value) for value in values])


def _session(value: SessionSummary) -> pb.SessionInfo:
    return pb.SessionInfo(
        session_id=value.session_id,
        model=value.model,
        total_tokens=value.total_tokens,
        image_count=value.image_count,
        idle_s=value.idle_s,
        ttl_s=value.ttl_s,
        is_busy=value.is_busy,
        is_suspended=value.is_suspended,
        steering=_steers(value.steering),
    )


def _steers(values: Steering) -> list[pb.Steer]:
    """The steering of a session."""
    return [
        pb.Steer(concept=each.concept, strength=each.strength, layers=each.layers or ()) for each in values
    ]


def chunks(data: bytes) -> Iterator[pb.SessionBytes]:
    """A saved session in messages."""
    for start in range(0, len(data), _CHUNK_BYTES):
        yield pb.SessionBytes(data=data[start : start + _CHUNK_BYTES])
