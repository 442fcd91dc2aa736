"""A node as the client asks it, apart from any one session: flows, and what is remembered of its models."""

from typing import Final

from ganglion.client.flow import Flow, ask, upload
from ganglion.client.readings import info_of, manifest_of, steering_messages
from ganglion.client.rpcs import DETOKENIZE, LIST, MANIFEST, OPEN, RESTORE, TOKENIZE
from ganglion.client.values import SessionInfo
from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import InvalidValue, ReadoutNotFound, SessionNotFound
from ganglion.core.request import Steering
from ganglion.wire.salience import salience_pb2 as pb

UPLOAD_BYTES: Final = 1 << 20
"""One message of a session that is restored."""


class Station:
    """One node's models, texts and lists."""

    def __init__(self, patience_s: float, manifests: dict[str, ReadoutManifest] | None = None) -> None:
        self.patience_s = patience_s
        self.manifests: dict[str, ReadoutManifest] = {} if manifests is None else manifests
        """By the name that was asked for; shared by all clones of a client."""

    def open(self, model: str, ttl_s: float | None, steering: Steering) -> Flow[pb.OpenSessionResponse]:
        """A fresh session."""
        request = pb.OpenSessionRequest(model=model, ttl_s=ttl_s, steering=steering_messages(steering))
        opened = yield from ask(OPEN, request, patience_s=self.patience_s)
        manifest = manifest_of(opened.readout)
        if manifest is not None:
            self.manifests[model] = manifest
        return opened

    def manifest(self, model: str) -> Flow[ReadoutManifest]:
        """What is read out of a model; asked for once."""
        known = self.manifests.get(model)
        if known is not None:
            return known
        request = pb.GetReadoutManifestRequest(model=model)
        manifest = manifest_of((yield from ask(MANIFEST, request, patience_s=self.patience_s)))
        if manifest is None:
            raise ReadoutNotFound(f"The model {model!r} has no readouts.", param="model")
        self.manifests[model] = manifest
        return manifest

    def tokenize(
        self, model: str, text: str, *, add_special: bool, parse_special: bool
    ) -> Flow[tuple[int, ...]]:
        """Text to token ids."""
        try:
            request = pb.TokenizeRequest(
                model=model, text=text, add_special=add_special, parse_special=parse_special
            )
        except (ValueError, TypeError) as error:
            raise InvalidValue(f"Expected text that UTF-8 can say: {error}.", param="text") from error
        reply = yield from ask(TOKENIZE, request, patience_s=self.patience_s)
        return tuple(reply.tokens)

    def detokenize(self, model: str, tokens: tuple[int, ...]) -> Flow[pb.DetokenizeResponse]:
        """Token ids to text and pieces."""
        request = pb.DetokenizeRequest(model=model, tokens=tokens)
        return (yield from ask(DETOKENIZE, request, patience_s=self.patience_s))

    def sessions(self) -> Flow[tuple[SessionInfo, ...]]:
        """The caller's own sessions."""
        reply = yield from ask(LIST, pb.ListSessionsRequest(), patience_s=self.patience_s)
        return tuple(info_of(each) for each in reply.sessions)

    def session(self, session_id: str) -> Flow[SessionInfo]:
        """One of them; raises SessionNotFound."""
        for info in (yield from self.sessions()):
            if info.session_id == session_id:
                return info
        raise SessionNotFound(session_id)

    def restore(self, saved: bytes) -> Flow[pb.RestoreSessionResponse]:
        """A session from bytes."""
        parts = range(0, max(1, len(saved)), UPLOAD_BYTES)
        messages = tuple(pb.SessionBytes(data=saved[at : at + UPLOAD_BYTES]) for at in parts)
        return (yield from upload(RESTORE, messages))
