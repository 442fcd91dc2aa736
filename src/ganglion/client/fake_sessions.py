"""The fake node's sessions: words as tokens, with the behaviour of the wire and without a model."""

import itertools
import json
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from ganglion.client.fake_generation import DEFAULT_REPLY, TTL_S, FakeSession, generate_events
from ganglion.client.fake_vocabulary import EOS, VOCABULARY_SIZE, FakeVocabulary, render_messages
from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import (
    ContextLengthExceeded,
    InvalidValue,
    ModelNotFound,
    ReadoutNotFound,
    ReadoutUnavailable,
    SessionDrift,
    SessionNotFound,
    VisionUnsupported,
)
from ganglion.core.request import PLACEHOLDER
from ganglion.wire.salience import salience_pb2 as pb

_Messages = Generator[Message, None, None]
IMAGE_POSITIONS: Final = 4
_MAGIC: Final = b"fake session 1\n"


class FakeSessions:
    """Answers every rpc of `salience.v1`; raises GanglionErrors."""

    def __init__(
        self,
        models: Sequence[str],
        manifest: ReadoutManifest | None,
        *,
        context_length: int,
        sees_images: bool,
        runs_ahead: int,
    ) -> None:
        self.replies: deque[str] = deque()
        self.sessions: dict[str, FakeSession] = {}
        self._models = tuple(models)
        self._manifest = manifest
        self._context_length = context_length
        self._sees_images = sees_images
        self._runs_ahead = runs_ahead
        self.vocabulary = FakeVocabulary()
        self.numbers = itertools.count(1)
        self._replies: dict[type[Message], Callable[[Any, str | None], Message]] = {
            pb.OpenSessionRequest: self._open,
            pb.AppendImageRequest: self._append_image,
            pb.ForkSessionRequest: self._fork,
            pb.TruncateSessionRequest: self._truncate,
            pb.ListSessionsRequest: self._list,
            pb.CloseSessionRequest: self._close,
            pb.SuspendSessionRequest: self._suspend,
            pb.SessionBytes: self._restore,
            pb.GetReadoutManifestRequest: self._readout_manifest,
            pb.GetTokensRequest: self._tokens,
            pb.RenderMessagesRequest: self._render,
            pb.TokenizeRequest: self._tokenize,
            pb.DetokenizeRequest: self._detokenize,
        }

    def answer(self, request: Message, owner: str | None) -> _Messages:
        """The messages that one call gets; closing it cancels the call."""
        match request:
            case pb.GenerateRequest():
                yield from self._generate(request, self._found(request.session_id, owner))
            case pb.SaveSessionRequest():
                yield from self._save(self._found(request.session_id, owner))
            case _:
                yield self._replies[type(request)](request, owner)

    def _found(self, session_id: str, owner: str | None) -> FakeSession:
        session = self.sessions.get(session_id)
        if session is None or session.owner != owner:
            raise SessionNotFound(session_id)
        session.is_suspended = False
        return session

    def _add(self, session: FakeSession) -> str:
        session_id = f"fake-{next(self.numbers)}"
        self.sessions[session_id] = session
        return session_id

    def _truncate(self, request: pb.TruncateSessionRequest, owner: str | None) -> Message:
        session = self._found(request.session_id, owner)
        if request.length > len(session.tokens):
            raise SessionDrift(request.length, len(session.tokens), param="length")
        session.move(request.length, True)
        return pb.TruncateSessionResponse(total_tokens=len(session.tokens))

    def _close(self, request: pb.CloseSessionRequest, owner: str | None) -> Message:
        self._found(request.session_id, owner)
        del self.sessions[request.session_id]
        return pb.CloseSessionResponse()

    def _suspend(self, request: pb.SuspendSessionRequest, owner: str | None) -> Message:
        session = self._found(request.session_id, owner)
        session.is_suspended = True
        return pb.SuspendSessionResponse(total_tokens=len(session.tokens), size_bytes=len(_MAGIC))

    def _readout_manifest(self, request: pb.GetReadoutManifestRequest, _: str | None) -> Message:
        self._check_model(request.model or self._models[0])
        if self._manifest is None:
            raise ReadoutNotFound("No concepts are loaded.", param="model")
        return self._manifest_message(request.model or self._models[0])

    def _tokens(self, request: pb.GetTokensRequest, owner: str | None) -> Message:
        tokens = self._found(request.session_id, owner).tokens
        if request.offset > len(tokens):
            raise SessionDrift(request.offset, len(tokens))
        end = request.offset + (request.limit or len(tokens))
        return pb.GetTokensResponse(tokens=tokens[request.offset : end], total_tokens=len(tokens))

    def _render(self, request: pb.RenderMessagesRequest, _: str | None) -> Message:
        self._check_model(request.model)
        text = render_messages(json.loads(request.chat)["messages"])
        if request.is_continued and request.preceding_tokens[-1:] != [EOS]:
            text = f"</s>{text}"
        tokens = self.vocabulary.tokens(text, add_special=not request.is_continued, parse_special=True)
        return pb.RenderMessagesResponse(tokens=tokens, text=text)

    def _tokenize(self, request: pb.TokenizeRequest, _: str | None) -> Message:
        self._check_model(request.model)
        tokens = self.vocabulary.tokens(
            request.text, add_special=request.add_special, parse_special=request.parse_special
        )
        return pb.TokenizeResponse(tokens=tokens)

    def _detokenize(self, request: pb.DetokenizeRequest, _: str | None) -> Message:
        self._check_model(request.model)
        pieces = [self.vocabulary.piece(token) for token in request.tokens]
        return pb.DetokenizeResponse(text=b"".join(pieces).decode(), pieces=pieces)

    def _check_model(self, model: str) -> None:
        if model not in self._models:
            raise ModelNotFound(model)

    def _manifest_message(self, model: str) -> pb.ReadoutManifest:
        self._check_model(model)
        if self._manifest is None:
            return pb.ReadoutManifest()
        return pb.ReadoutManifest(model=model, concepts=self._manifest.concepts, layers=self._manifest.layers)

    def _open(self, request: pb.OpenSessionRequest, owner: str | None) -> Message:
        readout = self._manifest_message(request.model)
        ttl_s = request.ttl_s if request.HasField("ttl_s") else TTL_S
        session = FakeSession(request.model, owner, steering=tuple(request.steering), ttl_s=ttl_s)
        return pb.OpenSessionResponse(
            session_id=self._add(session),
            model=request.model,
            context_length=self._context_length,
            vocab_size=VOCABULARY_SIZE,
            readout=readout,
            ttl_s=ttl_s,
            end_token_ids=[EOS],
        )

    def _list(self, _: pb.ListSessionsRequest, owner: str | None) -> Message:
        infos = [
            pb.SessionInfo(
                session_id=session_id,
                model=session.model,
                total_tokens=len(session.tokens),
                image_count=len(session.images),
                ttl_s=session.ttl_s,
                is_busy=session.is_busy,
                is_suspended=session.is_suspended,
                steering=session.steering,
            )
            for session_id, session in self.sessions.items()
            if session.owner == owner
        ]
        return pb.ListSessionsResponse(sessions=infos)

    def _append_image(self, request: pb.AppendImageRequest, owner: str | None) -> Message:
        session = self._found(request.session_id, owner)
        if not self._sees_images:
            raise VisionUnsupported(f"The model {session.model!r} does not accept images.", param="data")
        session.move(request.offset, request.truncating)
        session.images.append((len(session.tokens), IMAGE_POSITIONS))
        session.tokens += [PLACEHOLDER] * IMAGE_POSITIONS
        return pb.AppendImageResponse(placeholder_count=IMAGE_POSITIONS, total_length=len(session.tokens))

    def _fork(self, request: pb.ForkSessionRequest, owner: str | None) -> Message:
        session = self._found(request.session_id, owner)
        at = request.at if request.HasField("at") else len(session.tokens)
        if at > len(session.tokens):
            raise SessionDrift(at, len(session.tokens), param="at")
        fork = FakeSession(
            session.model, session.owner, [*session.tokens], [*session.images], session.steering
        )
        fork.ttl_s = request.ttl_s if request.HasField("ttl_s") else session.ttl_s
        fork.cut(at)
        return pb.ForkSessionResponse(session_id=self._add(fork), total_tokens=at)

    def _save(self, session: FakeSession) -> _Messages:
        kept = {
            "model": session.model,
            "tokens": session.tokens,
            "images": session.images,
            "steering": [each.SerializeToString().hex() for each in session.steering],
        }
        saved = _MAGIC + json.dumps(kept).encode()
        half = len(saved) // 2
        yield pb.SessionBytes(data=saved[:half])
        yield pb.SessionBytes(data=saved[half:])

    def _restore(self, request: pb.SessionBytes, owner: str | None) -> Message:
        saved = request.data
        if not saved.startswith(_MAGIC):
            raise InvalidValue("This is not a saved session.", param="data")
        kept = json.loads(saved[len(_MAGIC) :])
        self._check_model(kept["model"])
        images = [(start, count) for start, count in kept["images"]]
        steering = tuple(pb.Steer.FromString(bytes.fromhex(each)) for each in kept["steering"])
        session = FakeSession(kept["model"], owner, kept["tokens"], images, steering)
        return pb.RestoreSessionResponse(
            session_id=self._add(session),
            model=session.model,
            total_tokens=len(session.tokens),
            cached_tokens=len(session.tokens),
        )

    def _generate(self, request: pb.GenerateRequest, session: FakeSession) -> _Messages:
        if request.readout_ranges and self._manifest is None:
            raise ReadoutUnavailable("No concepts are loaded for this model.", param="readout_ranges")
        total = request.offset + len(request.append_tokens)
        if total >= self._context_length:
            raise ContextLengthExceeded(total, self._context_length)
        session.move(request.offset, request.truncating)
        session.tokens += request.append_tokens
        reply = self.replies.popleft() if request.max_tokens and self.replies else DEFAULT_REPLY
        return generate_events(
            request, session, self.vocabulary, self._manifest, reply=reply, runs_ahead=self._runs_ahead
        )
