"""The session service: every tenant's sessions over an engine, in memory and on disk.

Law: KV is not here. The engine's prefix cache has it or computes it again, so a session costs its tokens, the
files of its images, and nothing else.
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
from ganglion.core.request import ImageBlock, Steering
from ganglion.core.sampling import Sampling
from ganglion.sessions.archive import (
    Models,
    SessionArchive,
    SessionFolder,
    check_image_size,
    check_steering,
    check_vocabulary,
)
from ganglion.sessions.generation import check_ranges, run_generation
from ganglion.sessions.saved import SavedSession, decode
from ganglion.sessions.settings import SessionSettings
from ganglion.sessions.table import SessionRecord, SessionTable, adding_session_length
from ganglion.sessions.token_session import TokenSession, context_overflow
from ganglion.sessions.values import (
    AppendedImage,
    ForkedSession,
    GenerationRequest,
    OpenedSession,
    RestoredSession,
    SessionEvent,
    SessionSummary,
    SuspendedSession,
    TokenPage,
)

_logger = logging.getLogger("ganglion.sessions")

_IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp")
_SWEEP_S: Final = 1.0
"""How often expired sessions are removed."""


class SessionService:
    """Every tenant's sessions over an engine; all methods raise GanglionErrors. `clock` is for tests.

    Errors about a session that exists carry its length in `extras["session_length"]`.
    """

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
        self._table = SessionTable(settings, clock)
        self._archive = SessionArchive(engine, models)
        self._folder = (
            None if settings.folder is None else SessionFolder(settings.folder, settings.folder_bytes)
        )
        self._sweeper: asyncio.Task[None] | None = None

    # Its own lifetime

    async def start(self) -> None:
        """Register the suspended sessions on disk, and remove idle sessions from now on."""
        if self._folder is not None:
            for saved in await asyncio.to_thread(self._folder.open):
                self._register_suspended(saved)
        self._sweeper = asyncio.create_task(self._sweep(), name="sweep sessions")

    async def stop(self) -> None:
        """Close every session, after writing the open ones to disk where the operator wants that."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for record in self._table:
            if self._settings.keeps_on_drain and self._folder is not None and record.session is not None:
                # The tokens alone: hot KV is kept by the engine itself when it closes.
                data = self._archive.encode(record, record.session, b"", is_ours=True)
                try:
                    await asyncio.to_thread(self._folder.write, record.id, data)
                except GanglionError as error:
                    _logger.error("a session could not be written to disk: %s", error.message)
            self._table.remove(record)

    @property
    def open_sessions(self) -> int:
        """How many sessions there are."""
        return len(self._table)

    @property
    def tokens_in_memory(self) -> int:
        """How many tokens the sessions in memory hold."""
        return self._table.tokens

    @property
    def image_bytes_in_memory(self) -> int:
        """How much the images take of the sessions in memory."""
        return self._table.images.size_bytes

    # Sessions

    async def open(
        self, tenant: str, model: str, *, ttl_s: float | None = None, steering: Steering = ()
    ) -> OpenedSession:
        """A fresh, empty session."""
        self._table.check_count(tenant)
        info = await self._reader.tokenizer_info(model)
        state = find_model(self._models(), model)
        check_steering(steering, state)
        self._table.check_count(tenant)
        template = SessionRecord(
            "", tenant, model if state is None else state.id, info.context_length, 0.0, 0.0, steering
        )
        record = self._register(template, TokenSession(), ttl_s)
        readout = None if state is None else state.readout
        return OpenedSession(
            record.id,
            record.model,
            info.context_length,
            info.vocabulary_size,
            record.ttl_s,
            readout,
            info.end_ids,
        )

    async def generate(
        self, tenant: str, session_id: str, request: GenerationRequest
    ) -> AsyncGenerator[SessionEvent, None]:
        """Append and generate; closing it stops the work, and what was committed stays."""
        record = self._table.find(tenant, session_id)
        with self._table.exclusive(record):
            session = await self._load(record)
            change = session.propose(
                request.append,
                offset=request.offset,
                is_truncating=request.is_truncating,
                context_length=record.context_length,
                room=min(request.max_tokens, 1),
            )
            reach = change.length + request.max_tokens
            check_ranges("logprobs_ranges", request.logprobs, reach)
            check_ranges("readout_ranges", request.readout, reach)
            self._table.check_tokens(change.length - session.length)
            async with aclosing(run_generation(self._engine, record, session, change, request)) as events:
                async for event in events:
                    yield event

    async def append_image(
        self, tenant: str, session_id: str, data: bytes, mime: str, *, offset: int, is_truncating: bool
    ) -> AppendedImage:
        """Append an image as the model reads it."""
        record = self._table.find(tenant, session_id)
        with self._table.exclusive(record):
            session = await self._load(record)
            _check_image(data, mime, self._settings.max_image_bytes)
            change = session.propose(
                (), offset=offset, is_truncating=is_truncating, context_length=record.context_length, room=0
            )
            placed = await self._engine.place_image(record.model, data, mime, tenant=tenant)
            if record.is_closed:
                raise SessionNotFound(session_id)
            length = change.length + placed.count
            if length > record.context_length:
                raise context_overflow(length, record.context_length, param="data")
            self._table.check_tokens(length - session.length)
            block = ImageBlock(change.length, placed.count, placed.digest, data)
            (image,) = self._table.images.shared(tenant, (block,))
            self._table.images.check(tenant, (*session.images_before(change.keep), image))
            session.apply(change)
            session.append_image(image)
            return AppendedImage(image.count, session.length)

    async def fork(
        self, tenant: str, session_id: str, *, at: int | None = None, ttl_s: float | None = None
    ) -> ForkedSession:
        """Another session that begins with the same tokens; also of a session that is busy."""
        record = self._table.find(tenant, session_id)
        with adding_session_length(record):
            self._table.check_count(tenant)
            session = await self._load(record)
            forked = session.fork(session.length if at is None else at)
            self._table.check_tokens(forked.length)
        self._table.touch(record)
        forked_record = self._register(record, forked, record.ttl_s if ttl_s is None else ttl_s)
        return ForkedSession(forked_record.id, forked.length)

    async def truncate(self, tenant: str, session_id: str, length: int) -> int:
        """Drop everything from a position on; returns the length."""
        record = self._table.find(tenant, session_id)
        with self._table.exclusive(record):
            session = await self._load(record)
            session.truncate(length)
            return session.length

    async def tokens(self, tenant: str, session_id: str, *, offset: int, limit: int) -> TokenPage:
        """Some of a session's tokens, also of one that is busy."""
        record = self._table.find(tenant, session_id)
        with adding_session_length(record):
            session = await self._load(record)
            self._table.touch(record)
            return TokenPage(session.part(offset, limit), session.length)

    def sessions(self, tenant: str) -> tuple[SessionSummary, ...]:
        """A tenant's own sessions."""
        return tuple(
            SessionSummary(
                session_id=record.id,
                model=record.model,
                total_tokens=record.length,
                image_count=record.image_count,
                idle_s=self._table.idle_s(record),
                ttl_s=record.ttl_s,
                is_busy=record.is_busy,
                is_suspended=record.session is None,
                steering=record.steering,
            )
            for record in self._table.of(tenant)
        )

    async def close_session(self, tenant: str, session_id: str) -> None:
        """Close a session; a call that runs in it ends."""
        record = self._table.find(tenant, session_id)
        is_on_disk = record.session is None
        self._table.remove(record)
        if is_on_disk and self._folder is not None:
            await asyncio.to_thread(self._folder.remove, record.id)

    # On disk and elsewhere

    async def save(self, tenant: str, session_id: str, *, with_kv: bool) -> bytes:
        """The session as bytes."""
        record = self._table.find(tenant, session_id)
        with self._table.exclusive(record):
            session = await self._load(record)
            kv = await self._archive.kv_of(record, session) if with_kv else b""
            return await asyncio.to_thread(self._archive.encode, record, session, kv, is_ours=False)

    async def restore(self, tenant: str, saved: bytes) -> RestoredSession:
        """A session from bytes that `save` returned, here or elsewhere."""
        self._table.check_count(tenant)
        header, session, kv = await asyncio.to_thread(decode, saved)
        state = self._archive.matching_model(header)
        info = await self._reader.tokenizer_info(state.id)
        if session.length > info.context_length:
            raise context_overflow(session.length, info.context_length, param="data")
        check_vocabulary(session, info.vocabulary_size)
        check_steering(header.steers(), state)
        self._table.images.check(tenant, session.images)
        await self._archive.check_images(session, state.id, tenant, self._settings.max_image_bytes)
        self._table.check_count(tenant)
        self._table.check_tokens(session.length)
        self._hold_images(tenant, session)
        template = SessionRecord("", tenant, state.id, info.context_length, 0.0, 0.0, header.steers())
        record = self._register(template, session, None)
        cached = await self._archive.load_kv(record, session, kv)
        return RestoredSession(record.id, record.model, session.length, cached)

    async def suspend(self, tenant: str, session_id: str) -> SuspendedSession:
        """Put a session on disk until it is named again."""
        record = self._table.find(tenant, session_id)
        if self._folder is None:
            raise EngineUnavailable("This server has no folder for suspended sessions.")
        with self._table.exclusive(record):
            session = await self._load(record)
            kv = await self._archive.kv_of(record, session)
            data = await asyncio.to_thread(self._archive.encode, record, session, kv, is_ours=True)
            await asyncio.to_thread(self._folder.write, record.id, data)
            record.suspended_tokens, record.suspended_images = session.length, len(session.images)
            record.session = None
            return SuspendedSession(record.suspended_tokens, len(data))

    async def _load(self, record: SessionRecord) -> TokenSession:
        """The session in memory, read from disk if it is suspended."""
        if record.session is not None:
            return record.session
        assert self._folder is not None
        data = await asyncio.to_thread(self._folder.read, record.id)
        _, session, kv = await asyncio.to_thread(decode, data)
        self._table.check_tokens(session.length)
        info = await self._reader.tokenizer_info(record.model)
        if record.session is None:  # else another call of it was quicker
            record.context_length = info.context_length
            record.sampling = self._sampling_of(record.model)
            self._hold_images(record.tenant, session)
            record.session = session
            self._table.count(record)
            await self._archive.load_kv(record, session, kv)
            await asyncio.to_thread(self._folder.remove, record.id)
        return record.session

    def _hold_images(self, tenant: str, session: TokenSession) -> None:
        """Check that a session that comes in may have its images, and share their bytes with the others."""
        self._table.images.check(tenant, session.images)
        session.images = self._table.images.shared(tenant, session.images)

    def _register_suspended(self, saved: SavedSession) -> None:
        """Register a session that is on disk; its context length is found when it is loaded."""
        session = saved.session()
        record = SessionRecord(
            saved.session_id, saved.owner, saved.model, 0, saved.ttl_s, 0.0, saved.steers()
        )
        record.suspended_tokens, record.suspended_images = session.length, len(session.images)
        self._table.add(record)
        self._table.touch(record)

    def _register(self, template: SessionRecord, session: TokenSession, ttl_s: float | None) -> SessionRecord:
        """Register a session under a fresh id, otherwise like `template`."""
        record = SessionRecord(
            id=f"sess_{secrets.token_urlsafe(18)}",
            tenant=template.tenant,
            model=template.model,
            context_length=template.context_length,
            ttl_s=self._table.ttl_s(ttl_s),
            used_s=0.0,
            steering=template.steering,
            sampling=self._sampling_of(template.model),
            session=session,
        )
        self._table.touch(record)
        return self._table.add(record)

    def _sampling_of(self, model: str) -> Sampling:
        state = find_model(self._models(), model)
        return Sampling() if state is None else state.sampling

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._table.sweep()


def _check_image(data: bytes, mime: str, most: int) -> None:
    if mime not in _IMAGE_TYPES:
        raise InvalidValue(
            f"Expected an image of {', '.join(_IMAGE_TYPES)}, found {mime[:64]!r}.", param="mime"
        )
    check_image_size(data, most)
