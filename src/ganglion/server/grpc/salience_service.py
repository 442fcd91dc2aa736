"""The service `salience.v1.Salience` over the session service: each method reads and answers one message."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, assert_never

from ganglion.core.engine import ModelState, PromptReader, ReadoutManifest
from ganglion.core.errors import ContextLengthExceeded, InvalidValue, ReadoutNotFound
from ganglion.core.events import Progress, Token
from ganglion.core.request import Request, TextPrompt
from ganglion.server.grpc.caller import RpcCaller
from ganglion.server.grpc.chat_rendering import render_messages
from ganglion.server.grpc.message_limits import SessionUploads
from ganglion.server.grpc.parse import (
    MAX_APPENDED,
    generate_of,
    limit_of,
    mime_of,
    model_of,
    new_messages_of,
    session_of,
    steering_of,
    tokens_of,
    ttl_of,
)
from ganglion.server.middleware.model_lookup import known_model, only_model
from ganglion.sessions.service import SessionService
from ganglion.sessions.values import (
    GenerationDone,
    OpenedSession,
    SessionEvent,
    SessionSummary,
    SessionToken,
)
from ganglion.wire.salience import salience_pb2 as pb

_CHUNK_BYTES: Final = 2**20
"""Of a saved session in one message: well under what clients take by default, 4 MiB."""


def encode_opened(value: OpenedSession) -> pb.OpenSessionResponse:
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


def encode_event(value: SessionEvent) -> pb.GenerateEvent:
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
        top=[pb.Alternative(id=each.id, logprob=each.logprob, piece=each.piece) for each in value.top],
        readout=value.readout or None,
        piece=value.piece,
    )


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
        steering=[
            pb.Steer(concept=each.concept, strength=each.strength, layers=each.layers or ())
            for each in value.steering
        ],
    )


def chunks(data: bytes) -> Iterator[pb.SessionBytes]:
    """A saved session in messages."""
    for start in range(0, len(data), _CHUNK_BYTES):
        yield pb.SessionBytes(data=data[start : start + _CHUNK_BYTES])


_MAX_DETOKENIZED: Final = 2**20
_FEW_TOKENS: Final = 2**16
"""Handled on the event loop in a few milliseconds."""

_SalienceMethod = Callable[[Any, RpcCaller], Any]


class SalienceService:
    """Every method, by the name that the descriptor gives it."""

    def __init__(
        self,
        sessions: SessionService,
        reader: PromptReader,
        models: Callable[[], tuple[ModelState, ...]],
        *,
        max_text_bytes: int,
        is_strict: bool = False,
    ) -> None:
        self._sessions = sessions
        self._reader = reader
        self._models = models
        self._max_text_bytes = max_text_bytes
        self._is_strict = is_strict
        self._uploads = SessionUploads()
        self.methods: dict[str, _SalienceMethod] = {
            "OpenSession": self._open,
            "Generate": self._generate,
            "AppendImage": self._append_image,
            "ForkSession": self._fork,
            "TruncateSession": self._truncate,
            "ListSessions": self._list,
            "CloseSession": self._close,
            "SaveSession": self._save,
            "RestoreSession": self._restore,
            "SuspendSession": self._suspend,
            "GetReadoutManifest": self._manifest,
            "GetTokens": self._tokens,
            "RenderMessages": self._render,
            "Tokenize": self._tokenize,
            "Detokenize": self._detokenize,
        }

    async def _open(self, message: pb.OpenSessionRequest, caller: RpcCaller) -> pb.OpenSessionResponse:
        opened = await self._sessions.open(
            caller.tenant,
            self._named(message.model),
            ttl_s=ttl_of(message),
            steering=steering_of(message.steering),
        )
        return encode_opened(opened)

    async def _generate(
        self, message: pb.GenerateRequest, caller: RpcCaller
    ) -> AsyncGenerator[pb.GenerateEvent, None]:
        self._check_length(len(message.append_tokens))
        session_id, request = session_of(message.session_id), generate_of(message)
        request = replace(request, priority=caller.principal.bounded_priority(request.priority))
        async with aclosing(self._sessions.generate(caller.tenant, session_id, request)) as events:
            async for event in events:
                yield encode_event(event)

    def _check_length(self, count: int) -> None:
        """Refuse many tokens that fit no model's context before any of them is read."""
        if count <= _FEW_TOKENS:
            return  # the session says more about it
        contexts = (model.context_length or MAX_APPENDED for model in self._models())
        longest = max(contexts, default=MAX_APPENDED)
        if count > longest:
            raise ContextLengthExceeded(count, longest, param="append_tokens")

    async def _append_image(
        self, message: pb.AppendImageRequest, caller: RpcCaller
    ) -> pb.AppendImageResponse:
        placed = await self._sessions.append_image(
            caller.tenant,
            session_of(message.session_id),
            message.data,
            mime_of(message.mime),
            offset=message.offset,
            is_truncating=message.truncating,
        )
        return pb.AppendImageResponse(placeholder_count=placed.count, total_length=placed.total_tokens)

    async def _fork(self, message: pb.ForkSessionRequest, caller: RpcCaller) -> pb.ForkSessionResponse:
        forked = await self._sessions.fork(
            caller.tenant,
            session_of(message.session_id),
            at=message.at if message.HasField("at") else None,
            ttl_s=ttl_of(message),
        )
        return pb.ForkSessionResponse(session_id=forked.session_id, total_tokens=forked.total_tokens)

    async def _truncate(
        self, message: pb.TruncateSessionRequest, caller: RpcCaller
    ) -> pb.TruncateSessionResponse:
        length = await self._sessions.truncate(caller.tenant, session_of(message.session_id), message.length)
        return pb.TruncateSessionResponse(total_tokens=length)

    async def _list(self, _: pb.ListSessionsRequest, caller: RpcCaller) -> pb.ListSessionsResponse:
        return sessions(self._sessions.sessions(caller.tenant))

    async def _close(self, message: pb.CloseSessionRequest, caller: RpcCaller) -> pb.CloseSessionResponse:
        await self._sessions.close_session(caller.tenant, session_of(message.session_id))
        return pb.CloseSessionResponse()

    async def _save(
        self, message: pb.SaveSessionRequest, caller: RpcCaller
    ) -> AsyncGenerator[pb.SessionBytes, None]:
        session_id = session_of(message.session_id)
        for chunk in chunks(
            await self._sessions.save(caller.tenant, session_id, with_kv=not message.without_kv)
        ):
            yield chunk

    async def _restore(
        self, messages: AsyncIterator[pb.SessionBytes], caller: RpcCaller
    ) -> pb.RestoreSessionResponse:
        async with self._uploads.taking(messages) as saved:
            restored = await self._sessions.restore(caller.tenant, saved)
        return pb.RestoreSessionResponse(
            session_id=restored.session_id,
            model=restored.model,
            total_tokens=restored.total_tokens,
            cached_tokens=restored.cached_tokens,
        )

    async def _suspend(
        self, message: pb.SuspendSessionRequest, caller: RpcCaller
    ) -> pb.SuspendSessionResponse:
        suspended = await self._sessions.suspend(caller.tenant, session_of(message.session_id))
        return pb.SuspendSessionResponse(total_tokens=suspended.total_tokens, size_bytes=suspended.size_bytes)

    async def _manifest(self, message: pb.GetReadoutManifestRequest, _: RpcCaller) -> pb.ReadoutManifest:
        name = self._named(message.model)
        state = known_model(self._models(), name)
        if state.status in ("loading", "downloading"):
            await self._reader.tokenizer_info(name)  # which waits for it
            state = known_model(self._models(), name)
        if state.readout is None:
            raise ReadoutNotFound(
                f"The model {state.id!r} has no readouts.",
                param="model",
                hint="Serve it with --concepts PACK.",
            )
        return manifest(state.id, state.readout)

    async def _tokens(self, message: pb.GetTokensRequest, caller: RpcCaller) -> pb.GetTokensResponse:
        page = await self._sessions.tokens(
            caller.tenant, session_of(message.session_id), offset=message.offset, limit=limit_of(message)
        )
        return pb.GetTokensResponse(tokens=page.tokens, total_tokens=page.total_tokens)

    async def _render(
        self, message: pb.RenderMessagesRequest, caller: RpcCaller
    ) -> pb.RenderMessagesResponse:
        rendered = await render_messages(
            self._reader,
            new_messages_of(message, self._max_text_bytes),
            request_id=caller.request_id,
            tenant=caller.tenant,
            is_strict=self._is_strict,
        )
        return pb.RenderMessagesResponse(tokens=rendered.tokens, text=rendered.text)

    async def _tokenize(self, message: pb.TokenizeRequest, caller: RpcCaller) -> pb.TokenizeResponse:
        if len(message.text) > self._max_text_bytes:
            raise InvalidValue(
                f"Expected at most {self._max_text_bytes} characters in 'text', found {len(message.text)}.",
                param="text",
            )
        prompt = TextPrompt(
            message.text, adds_special=message.add_special, parses_special=message.parse_special
        )
        request = Request(caller.request_id, self._named(message.model), prompt, tenant=caller.tenant)
        return pb.TokenizeResponse(tokens=(await self._reader.read(request)).tokens)

    async def _detokenize(self, message: pb.DetokenizeRequest, caller: RpcCaller) -> pb.DetokenizeResponse:
        model = self._named(message.model)
        tokens = tokens_of("tokens", message.tokens, _MAX_DETOKENIZED)
        text = await self._reader.detokenize(model, tokens, tenant=caller.tenant)
        pieces = await self._reader.pieces(model, tokens, tenant=caller.tenant)
        return pb.DetokenizeResponse(text=text, pieces=pieces)

    def _named(self, model: str) -> str:
        """The model that is meant; left out, it is the only one that is loaded."""
        return model_of(model) if model else only_model(self._models())
