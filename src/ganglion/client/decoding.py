"""The decoding of `salience.v1` messages into the client's values."""

from codecs import getincrementaldecoder

from ganglion.client.values import Done, Progress, Readout, SessionInfo, TokenEvent
from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import ServerError
from ganglion.core.events import Alternative
from ganglion.core.request import Steer, Steering
from ganglion.wire.salience import salience_pb2 as pb


class TokenDecoder:
    """Decodes the tokens of one call; `text` is decoded across adjacent ones."""

    def __init__(self, manifest: ReadoutManifest | None) -> None:
        self._manifest = manifest
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._next = -1

    def event(self, token: pb.Token) -> TokenEvent:
        """One token as an event."""
        if token.position != self._next:
            self._decoder.reset()
        self._next = token.position + 1
        return TokenEvent(
            id=token.id,
            piece=token.piece,
            position=token.position,
            text=self._decoder.decode(token.piece),
            is_prefill=token.is_prefill,
            logprob=token.sampled_logprob if token.HasField("sampled_logprob") else None,
            top=tuple(Alternative(each.id, each.piece, each.logprob) for each in token.top),
            readout=self._readout(token),
        )

    def _readout(self, token: pb.Token) -> Readout | None:
        if self._manifest is None or not token.readout:
            return None
        expected = len(self._manifest.layers) * len(self._manifest.concepts)
        if len(token.readout) != expected:
            raise ServerError(
                f"Expected a readout of {expected} values, found {len(token.readout)}.",
                hint="The node's concepts have changed: open another session.",
            )
        return Readout(tuple(token.readout), self._manifest)


def progress_of(progress: pb.Progress) -> Progress:
    """A progress event."""
    return Progress(progress.prefilled, progress.total)


def done_of(done: pb.Done) -> Done:
    """The last event of a call."""
    return Done(
        done.prompt_tokens,
        done.completion_tokens,
        done.cached_tokens,
        done.total_tokens,
        done.finish_reason,
        done.stop_token if done.HasField("stop_token") else None,
        done.stop_text if done.HasField("stop_text") else None,
        done.stop_start if done.HasField("stop_start") else None,
    )


def manifest_of(manifest: pb.ReadoutManifest) -> ReadoutManifest | None:
    """The readouts of a model; None of one without any."""
    if not manifest.concepts:
        return None
    return ReadoutManifest(tuple(manifest.concepts), tuple(manifest.layers))


def info_of(info: pb.SessionInfo) -> SessionInfo:
    """One session of a list."""
    return SessionInfo(
        session_id=info.session_id,
        model=info.model,
        total_tokens=info.total_tokens,
        image_count=info.image_count,
        idle_s=info.idle_s,
        ttl_s=info.ttl_s,
        is_busy=info.is_busy,
        is_suspended=info.is_suspended,
        steering=tuple(
            Steer(each.concept, each.strength, tuple(each.layers) or None) for each in info.steering
        ),
    )


def steering_messages(steering: Steering) -> list[pb.Steer]:
    """Steering as messages."""
    return [pb.Steer(concept=s.concept, strength=s.strength, layers=s.layers or ()) for s in steering]
