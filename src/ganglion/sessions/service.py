"""Every tenant's sessions over an engine: opened, continued, forked, put away and brought back.

Law: KV is not here. The engine's prefix cache has it or computes it again, so that a session costs its tokens
and nothing else.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from ganglion.core.engine import PromptReader, SessionEngine, find_model
from ganglion.core.errors import (
    EngineUnavailable,
    GanglionError,
    InvalidValue,
    SessionNotFound,
)
from ganglion.core.events import Failed, Finished, Pieces, Progress, Scored, Started
from ganglion.core.request import ImageBlock, Sampling, Score, Steering, Stop, TokenRequest, resolve
from ganglion.sessions.archive import (
    Models,
    SessionArchive,
    SessionFolder,
    check_steering,
    check_vocabulary,
)
from ganglion.sessions.generation import (
    LogprobFilter,
    StopTextLocator,
    check_ranges,
    grammar_for,
    with_wire_field,
)
from ganglion.sessions.saved import SavedSession, decode
from ganglion.sessions.settings import SessionSettings
from ganglion.sessions.table import SessionRecord, SessionTable, adding_session_length
from ganglion.sessions.token_session import ProposedChange, TokenSession, context_overflow
from ganglion.sessions.values import (
    AppendedImage,
    ForkedSession,
    GenerationDone,
    GenerationRequest,
    OpenedSession,
    RestoredSession,
    SessionEvent,
    SessionSummary,
    SessionToken,
    SuspendedSession,
    TokenPage,
)

logger = logging.getLogger("ganglion.sessions")

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")
SWEEP_S: Final = 1.0
"""How often sessions are looked for that nobody named in their time."""


class EngineSessionService:
    """A SessionKeeper over an engine's models; `clock` is for tests."""

    def __init__(
        self,
        engine: SessionEngine,
        reader: PromptReader,
        models: Models,
        settings: SessionSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._models = models
        self._settings = settings = settings or SessionSettings()
        self._holdings = SessionTable(settings, clock)
        self._archive = SessionArchive(engine, models)
        self._folder = (
            None if settings.folder is None else SessionFolder(settings.folder, settings.folder_bytes)
        )
        self._sweeping: asyncio.Task[None] | None = None

    # Its own life

    async def start(self) -> None:
        """Bring back what lies on disk, and forget idle sessions from now on."""
        if self._folder is not None:
            for saved in await asyncio.to_thread(self._folder.open):
                self._recall(saved)
        self._sweeping = asyncio.create_task(self._sweep(), name="sweep sessions")

    async def stop(self) -> None:
        """Let go of every session, after writing the open ones to disk where the operator wants that."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for held in self._holdings:
            if self._settings.keeps_on_drain and self._folder is not None and held.session is not None:
                # The tokens alone: hot KV is kept by the engine itself when it closes.
                data = self._archive.encoded(held, held.session, b"", is_ours=True)
                try:
                    await asyncio.to_thread(self._folder.write, held.id, data)
                except GanglionError as error:
                    logger.error("a session was not kept: %s", error.message)
            self._holdings.forget(held)

    @property
    def open_sessions(self) -> int:
        """How many sessions there are."""
        return len(self._holdings)

    @property
    def held_tokens(self) -> int:
        """How many tokens all sessions in memory have."""
        return self._holdings.tokens

    # Sessions

    async def open(
        self, tenant: str, model: str, *, ttl_s: float | None = None, steering: Steering = ()
    ) -> OpenedSession:
        """A fresh, empty session."""
        self._holdings.check_count(tenant)
        info = await self._reader.tokenizer_info(model)
        state = find_model(self._models(), model)
        check_steering(steering, state)
        self._holdings.check_count(tenant)
        like = SessionRecord(
            "", tenant, model if state is None else state.id, info.context_length, 0.0, 0.0, steering
        )
        held = self._keep(like, TokenSession(), ttl_s)
        readout = None if state is None else state.readout
        return OpenedSession(
            held.id,
            held.model,
            info.context_length,
            info.vocabulary_size,
            held.ttl_s,
            readout,
            info.end_ids,
        )

    async def generate(
        self, tenant: str, session_id: str, asked: GenerationRequest
    ) -> AsyncGenerator[SessionEvent, None]:
        """Append and generate; closing it stops the work, and what was committed stays."""
        held = self._holdings.find(tenant, session_id)
        with self._holdings.changing(held):
            session = await self._awake(held)
            change = session.propose(
                asked.append,
                offset=asked.offset,
                is_truncating=asked.is_truncating,
                context_length=held.context_length,
                room=min(asked.max_tokens, 1),
            )
            reach = change.length + asked.max_tokens
            check_ranges("logprobs_ranges", asked.logprobs, reach)
            check_ranges("readout_ranges", asked.readout, reach)
            self._holdings.check_tokens(change.length - session.length)
            async with aclosing(self._run(held, session, change, asked)) as events:
                async for event in events:
                    yield event

    async def _run(
        self, held: SessionRecord, session: TokenSession, change: ProposedChange, asked: GenerationRequest
    ) -> AsyncGenerator[SessionEvent, None]:
        request = self._request(held, session, change, asked)
        wanted, stop_text = LogprobFilter(asked.logprobs), StopTextLocator(asked.stop_strings)
        is_made = False
        async with aclosing(self._engine.continue_tokens(held.model, request)) as events:
            async for event in events:
                if held.is_closed:
                    raise SessionNotFound(held.id)
                # Until the engine has begun, a refused call has changed nothing and can be sent again.
                if not is_made and not isinstance(event, Progress | Failed):
                    session.make(change)
                    is_made = True
                match event:
                    case Progress(stage="prefilled"):
                        yield event
                    case Scored(tokens=tokens):
                        for token in tokens:
                            yield SessionToken(token, is_prefill=True)
                    case Pieces(pieces=pieces):
                        for piece in pieces:
                            for token in piece.tokens:
                                session.commit(token.id)
                                stop_text.feed(token)
                                yield SessionToken(wanted.only(token), is_prefill=False)
                    case Finished(usage=usage):
                        yield GenerationDone(
                            prompt_tokens=change.length,
                            completion_tokens=usage.completion_tokens,
                            cached_tokens=usage.cached_tokens,
                            total_tokens=session.length,
                            reason=event.reason,
                            stop_token=event.stop_token,
                            stop_text=event.stop_sequence,
                            stop_start=stop_text.start(event.stop_sequence),
                        )
                    case Failed(error=error):
                        raise with_wire_field(error, asked)
                    case Progress() | Started():
                        pass

    async def append_image(
        self, tenant: str, session_id: str, data: bytes, mime: str, *, offset: int, is_truncating: bool
    ) -> AppendedImage:
        """Append an image as the model reads it."""
        held = self._holdings.find(tenant, session_id)
        with self._holdings.changing(held):
            session = await self._awake(held)
            _check_image(data, mime, self._settings.max_image_bytes)
            change = session.propose(
                (), offset=offset, is_truncating=is_truncating, context_length=held.context_length, room=0
            )
            image = await self._engine.place_image(held.model, data, mime)
            if change.length + image.count > held.context_length:
                raise context_overflow(change.length + image.count, held.context_length, param="data")
            self._holdings.check_tokens(image.count)
            session.make(change)
            session.place(ImageBlock(session.length, image.count, image.digest))
            return AppendedImage(image.count, session.length)

    async def fork(
        self, tenant: str, session_id: str, *, at: int | None = None, ttl_s: float | None = None
    ) -> ForkedSession:
        """Another session that begins with the same tokens; also of a session that is busy."""
        held = self._holdings.find(tenant, session_id)
        with adding_session_length(held):
            self._holdings.check_count(tenant)
            session = await self._awake(held)
            forked = session.fork(session.length if at is None else at)
            self._holdings.check_tokens(forked.length)
        self._holdings.touch(held)
        kept = self._keep(held, forked, held.ttl_s if ttl_s is None else ttl_s)
        return ForkedSession(kept.id, forked.length)

    async def truncate(self, tenant: str, session_id: str, length: int) -> int:
        """Forget everything from a position on; returns the length."""
        held = self._holdings.find(tenant, session_id)
        with self._holdings.changing(held):
            session = await self._awake(held)
            session.truncate(length)
            return session.length

    async def tokens(self, tenant: str, session_id: str, *, offset: int, limit: int) -> TokenPage:
        """Some of a session's tokens, also of one that is busy."""
        held = self._holdings.find(tenant, session_id)
        with adding_session_length(held):
            session = await self._awake(held)
            self._holdings.touch(held)
            return TokenPage(session.part(offset, limit), session.length)

    def sessions(self, tenant: str) -> tuple[SessionSummary, ...]:
        """A tenant's own sessions."""
        return tuple(
            SessionSummary(
                session_id=held.id,
                model=held.model,
                total_tokens=held.length,
                image_count=held.image_count,
                idle_s=self._holdings.idle_s(held),
                ttl_s=held.ttl_s,
                is_busy=held.is_busy,
                is_suspended=held.session is None,
                steering=held.steering,
            )
            for held in self._holdings.of(tenant)
        )

    async def close_session(self, tenant: str, session_id: str) -> None:
        """Forget a session; what runs in it ends."""
        held = self._holdings.find(tenant, session_id)
        is_on_disk = held.session is None
        self._holdings.forget(held)
        if is_on_disk and self._folder is not None:
            await asyncio.to_thread(self._folder.remove, held.id)

    # On disk and elsewhere

    async def save(self, tenant: str, session_id: str, *, with_kv: bool) -> bytes:
        """The session as bytes."""
        held = self._holdings.find(tenant, session_id)
        with self._holdings.changing(held):
            session = await self._awake(held)
            kv = await self._archive.kv_of(held, session) if with_kv else b""
            return await asyncio.to_thread(self._archive.encoded, held, session, kv, is_ours=False)

    async def restore(self, tenant: str, saved: bytes) -> RestoredSession:
        """A session from bytes that `save` gave, here or elsewhere."""
        self._holdings.check_count(tenant)
        header, kv = await asyncio.to_thread(decode, saved)
        session = header.session()
        state = self._archive.same_model(header)
        info = await self._reader.tokenizer_info(state.id)
        if session.length > info.context_length:
            raise context_overflow(session.length, info.context_length, param="data")
        check_vocabulary(session, info.vocabulary_size)
        check_steering(header.steers(), state)
        self._holdings.check_count(tenant)
        self._holdings.check_tokens(session.length)
        like = SessionRecord("", tenant, state.id, info.context_length, 0.0, 0.0, header.steers())
        held = self._keep(like, session, None)
        cached = await self._archive.give_kv(held, session, kv)
        return RestoredSession(held.id, held.model, session.length, cached)

    async def suspend(self, tenant: str, session_id: str) -> SuspendedSession:
        """Put a session on disk until it is named again."""
        held = self._holdings.find(tenant, session_id)
        if self._folder is None:
            raise EngineUnavailable("This server keeps no sessions on disk.")
        with self._holdings.changing(held):
            session = await self._awake(held)
            kv = await self._archive.kv_of(held, session)
            data = await asyncio.to_thread(self._archive.encoded, held, session, kv, is_ours=True)
            await asyncio.to_thread(self._folder.write, held.id, data)
            held.suspended_tokens, held.suspended_images = session.length, len(session.images)
            held.session = None
            return SuspendedSession(held.suspended_tokens, len(data))

    async def _awake(self, held: SessionRecord) -> TokenSession:
        """The session in memory, read from disk if it lies there."""
        if held.session is not None:
            return held.session
        assert self._folder is not None
        header, kv = decode(await asyncio.to_thread(self._folder.read, held.id))
        session = header.session()
        self._holdings.check_tokens(session.length)
        info = await self._reader.tokenizer_info(held.model)
        if held.session is None:  # else another fork of it was quicker
            held.context_length = info.context_length
            held.sampling = self._sampling_of(held.model)
            held.session = session
            self._holdings.count(held)
            await self._archive.give_kv(held, session, kv)
            await asyncio.to_thread(self._folder.remove, held.id)
        return held.session

    def _recall(self, saved: SavedSession) -> None:
        """Know of a session that lies on disk; how long it may be is asked when it is named."""
        session = saved.session()
        held = SessionRecord(saved.session_id, saved.owner, saved.model, 0, saved.ttl_s, 0.0, saved.steers())
        held.suspended_tokens, held.suspended_images = session.length, len(session.images)
        self._holdings.add(held)
        self._holdings.touch(held)

    def _keep(self, like: SessionRecord, session: TokenSession, ttl_s: float | None) -> SessionRecord:
        """Hold a session under a fresh id, otherwise as another is held."""
        held = SessionRecord(
            id=f"sess_{secrets.token_urlsafe(18)}",
            tenant=like.tenant,
            model=like.model,
            context_length=like.context_length,
            ttl_s=self._holdings.ttl_s(ttl_s),
            used_s=0.0,
            steering=like.steering,
            sampling=self._sampling_of(like.model),
            session=session,
        )
        self._holdings.touch(held)
        return self._holdings.add(held)

    def _sampling_of(self, model: str) -> Sampling:
        state = find_model(self._models(), model)
        return Sampling() if state is None else state.sampling

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._holdings.sweep()

    def _request(
        self, held: SessionRecord, session: TokenSession, change: ProposedChange, asked: GenerationRequest
    ) -> TokenRequest:
        score = tuple(span for span in asked.logprobs if span[0] < change.length)
        reaches_generated = any(end is None or end > change.length for _, end in asked.logprobs)
        return TokenRequest(
            id=f"gen_{secrets.token_hex(12)}",
            tokens=session.after(change),
            max_tokens=asked.max_tokens,
            grammar=grammar_for(asked) if asked.max_tokens else None,
            score=Score(score, asked.top) if score else None,
            sampling=resolve(asked.sampling, held.sampling),
            stop=Stop(asked.stop_strings, asked.stop_token_ids, asked.ignore_eos),
            top_logprobs=asked.top if reaches_generated and asked.max_tokens else None,
            priority=asked.priority,
            salt=held.salt,
            in_tokens=True,
            readout=asked.readout,
            steering=held.steering,
            images=session.images_before(change.keep),
        )


def _check_image(data: bytes, mime: str, most: int) -> None:
    if mime not in IMAGE_TYPES:
        raise InvalidValue(
            f"Expected an image of {', '.join(IMAGE_TYPES)}, found {mime[:64]!r}.", param="mime"
        )
    if not 0 < len(data) <= most:
        raise InvalidValue(f"Expected an image of 1 to {most} bytes, found {len(data)}.", param="data")
