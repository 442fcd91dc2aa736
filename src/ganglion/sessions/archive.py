"""Sessions that leave memory and come back: their bytes, their KV, and which model may continue them."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ganglion.core.engine import ModelState, SessionEngine, find_model
from ganglion.core.errors import GanglionError, InvalidValue, ModelMismatch, StorageFull, StoreUnusable
from ganglion.core.request import Steering
from ganglion.sessions.saved import (
    MAX_HEADER_BYTES,
    PREFIX,
    SavedSession,
    decode_header,
    encode,
    fingerprint,
    header_of,
)
from ganglion.sessions.table import SessionRecord
from ganglion.sessions.token_session import TokenSession

# Law: a file has its final name only when it is whole and on the disk. Names are ours alone: a session's id
# is a name only after it was checked. Files hold prompts, so that nobody but their owner may read them.

SESSION_NAME: Final = re.compile(r"sess_[A-Za-z0-9_-]{1,64}")
SUFFIX: Final = ".session"
UNFINISHED: Final = ".part"


class SessionFolder:
    """A bounded folder; all of it blocks and belongs off the event loop."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def open(self) -> list[SavedSession]:
        """What was suspended; what cannot be read is left where it is."""
        found = []
        for file in self._files():
            with suppress(InvalidValue, OSError):
                if file.suffix == UNFINISHED:
                    file.unlink(missing_ok=True)
                    continue
                found.append(_header(file))
        return found

    def write(self, session_id: str, data: bytes) -> None:
        """Keep a session; it is on the disk when this returns."""
        self._check_room(len(data))
        path = self._file(session_id)
        fresh = path.with_suffix(UNFINISHED)
        try:
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            _sync_folder(self._path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise StorageFull(f"The session could not be written: {error.strerror}.") from error

    def read(self, session_id: str) -> bytes:
        """A session's bytes."""
        try:
            return self._file(session_id).read_bytes()
        except OSError as error:
            raise StoreUnusable(f"The session could not be read: {error.strerror}.") from error

    def remove(self, session_id: str) -> None:
        """Forget a session that lies here."""
        self._file(session_id).unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        try:
            files = sorted(self._path.iterdir())
        except FileNotFoundError:
            return  # the first session that is suspended makes it
        except OSError as error:
            raise StoreUnusable(f"Sessions cannot be kept in {self._path}: {error.strerror}.") from error
        for file in files:
            if SESSION_NAME.fullmatch(file.stem) and file.suffix in (SUFFIX, UNFINISHED) and file.is_file():
                yield file

    def _file(self, session_id: str) -> Path:
        assert SESSION_NAME.fullmatch(session_id)
        return self._path / f"{session_id}{SUFFIX}"

    def _check_room(self, size_bytes: int) -> None:
        held = sum(file.stat().st_size for file in self._files())
        if held + size_bytes > self._max_bytes:
            raise StorageFull(
                f"Suspended sessions take {held >> 20} MiB of the {self._max_bytes >> 20} MiB they may.",
                hint="Close some of them.",
            )


def _header(file: Path) -> SavedSession:
    with file.open("rb") as opened:
        prefix = opened.read(PREFIX.size)
        length = PREFIX.unpack(prefix)[1] if len(prefix) == PREFIX.size else 0
        return decode_header(prefix + opened.read(min(length, MAX_HEADER_BYTES)))[0]


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


Models = Callable[[], tuple[ModelState, ...]]


class SessionArchive:
    """Turns sessions into bytes, and finds the model for those that come back."""

    def __init__(self, engine: SessionEngine, models: Models) -> None:
        self._engine = engine
        self._models = models

    async def kv_of(self, held: SessionRecord, session: TokenSession) -> bytes:
        """The KV that is at hand; images have none that could be moved."""
        if session.images or not session.length:
            return b""
        return await self._engine.save_kv(held.model, held.salt, session.tokens())

    async def give_kv(self, held: SessionRecord, session: TokenSession, kv: bytes) -> int:
        """Put KV back; returns of how many tokens. Where it cannot be, it is computed again."""
        if not kv:
            return 0
        try:
            return await self._engine.load_kv(held.model, held.salt, session.tokens(), kv)
        except GanglionError:
            return 0

    def encoded(self, held: SessionRecord, session: TokenSession, kv: bytes, *, is_ours: bool) -> bytes:
        """A session as bytes; only on our own disk do they say whose it is."""
        state = find_model(self._models(), held.model)
        header = header_of(
            session,
            model=held.model,
            fingerprint=fingerprint(held.model, None if state is None else state.facts),
            steering=held.steering,
            kv=kv,
            owner=held.tenant if is_ours else "",
            session_id=held.id if is_ours else "",
            ttl_s=held.ttl_s if is_ours else 0.0,
        )
        return encode(header, kv)

    def same_model(self, saved: SavedSession) -> ModelState:
        """The model here that a session was saved from, by its name if it has that; raises ModelMismatch."""
        for state in sorted(self._models(), key=lambda state: state.id != saved.model):
            if fingerprint(state.id, state.facts) == saved.fingerprint:
                return state
        raise ModelMismatch(
            f"The session belongs to the model {saved.model[:200]!r}, and no model here is the same.",
            param="data",
            hint="Restore it where that model is served.",
        )


def check_steering(steering: Steering, state: ModelState | None) -> None:
    """Whether a model can be steered so; raises InvalidValue."""
    known = () if state is None or state.readout is None else state.readout.concepts
    for steer in steering:
        if steer.concept not in known:
            raise InvalidValue(
                f"The model has no concept {steer.concept[:64]!r} to steer by.",
                param="steering",
                hint=f"There are: {', '.join(known)}." if known else "Serve it with --concepts PACK.",
            )


def check_vocabulary(session: TokenSession, size: int) -> None:
    """Whether a session that came from outside has only tokens that exist; raises InvalidValue."""
    if any(token >= size for token in session.tokens()):
        raise InvalidValue(f"The session has tokens outside the vocabulary of {size}.", param="data")
