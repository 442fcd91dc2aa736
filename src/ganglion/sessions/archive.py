"""Sessions outside memory: the folder of suspended ones, their KV, and the model that may continue them."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ganglion.core.engine import ModelState, SessionEngine, find_model
from ganglion.core.errors import GanglionError, InvalidValue, ModelMismatch, StorageFull, StoreUnusable
from ganglion.core.request import Steering
from ganglion.sessions.held_images import files_of
from ganglion.sessions.saved import (
    MAX_HEADER_BYTES,
    PREFIX,
    SavedSession,
    decode_header,
    encode_session,
    fingerprint,
    header_of,
)
from ganglion.sessions.table import SessionRecord
from ganglion.sessions.token_session import TokenSession

# Law: a file has its final name only when it is whole and on the disk. Names are ours alone: a session's id
# is a name only after it was checked. Files hold prompts, so that nobody but their owner may read them.

_SESSION_NAME: Final = re.compile(r"sess_[A-Za-z0-9_-]{1,64}")
_SUFFIX: Final = ".session"
_UNFINISHED: Final = ".part"


class SessionFolder:
    """A bounded folder; all of it blocks and belongs off the event loop."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def open(self) -> list[SavedSession]:
        """The headers of the suspended sessions; a file that cannot be read is left where it is."""
        found = []
        for file in self._files():
            with suppress(InvalidValue, OSError):
                if file.suffix == _UNFINISHED:
                    file.unlink(missing_ok=True)
                    continue
                found.append(_header(file))
        return found

    def write(self, session_id: str, data: bytes) -> None:
        """Write a session; it is on the disk when this returns."""
        self._check_room(len(data))
        path = self._file(session_id)
        fresh = path.with_suffix(_UNFINISHED)
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
        """Remove a session's file."""
        self._file(session_id).unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        try:
            files = sorted(self._path.iterdir())
        except FileNotFoundError:
            return  # the first session that is suspended creates it
        except OSError as error:
            raise StoreUnusable(f"Sessions cannot be kept in {self._path}: {error.strerror}.") from error
        for file in files:
            if (
                _SESSION_NAME.fullmatch(file.stem)
                and file.suffix in (_SUFFIX, _UNFINISHED)
                and file.is_file()
            ):
                yield file

    def _file(self, session_id: str) -> Path:
        assert _SESSION_NAME.fullmatch(session_id)
        return self._path / f"{session_id}{_SUFFIX}"

    def _check_room(self, size_bytes: int) -> None:
        used = sum(file.stat().st_size for file in self._files())
        if used + size_bytes > self._max_bytes:
            raise StorageFull(
                f"Suspended sessions take {used >> 20} MiB, and may take {self._max_bytes >> 20} MiB.",
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
    """Turns sessions into bytes, and finds the model that may continue restored ones."""

    def __init__(self, engine: SessionEngine, models: Models) -> None:
        self._engine = engine
        self._models = models

    async def kv_of(self, record: SessionRecord, session: TokenSession) -> bytes:
        """The KV that the engine still has; what lies behind an image is computed again from its file."""
        if session.images or not session.length:
            return b""
        return await self._engine.save_kv(record.model, record.salt, session.tokens())

    async def load_kv(self, record: SessionRecord, session: TokenSession, kv: bytes) -> int:
        """Load KV; returns of how many tokens. Where it cannot be loaded, it is computed again."""
        if not kv:
            return 0
        try:
            return await self._engine.load_kv(record.model, record.salt, session.tokens(), kv)
        except GanglionError:
            return 0

    def encode(self, record: SessionRecord, session: TokenSession, kv: bytes, *, is_ours: bool) -> bytes:
        """A session as bytes; only those on our own disk name its owner."""
        state = find_model(self._models(), record.model)
        header = header_of(
            session,
            model=record.model,
            fingerprint=fingerprint(record.model, None if state is None else state.facts),
            steering=record.steering,
            kv=kv,
            owner=record.tenant if is_ours else "",
            session_id=record.id if is_ours else "",
            ttl_s=record.ttl_s if is_ours else 0.0,
        )
        return encode_session(header, session, kv)

    async def check_images(self, session: TokenSession, model: str, tenant: str, most: int) -> None:
        """Check that a model takes the images of a session from outside as it says; raises GanglionErrors."""
        for digest, data in files_of(session.images).items():
            if not data:
                raise InvalidValue(
                    "The session was saved without the files of its images.",
                    param="data",
                    hint="Save it anew where it came from, with a server of this version.",
                )
            check_image_size(data, most)
            placed = await self._engine.place_image(model, data, "", tenant=tenant)
            counts = {image.count for image in session.images if image.digest == digest}
            if (placed.digest, {placed.count}) != (digest, counts):
                raise ModelMismatch(
                    f"An image takes {placed.count} positions here, and another number in the session.",
                    param="data",
                    hint="Restore it where the model has the same projector.",
                )

    def matching_model(self, saved: SavedSession) -> ModelState:
        """The model that a session was saved from, preferably under the same name; raises ModelMismatch."""
        for state in sorted(self._models(), key=lambda state: state.id != saved.model):
            if fingerprint(state.id, state.facts) == saved.fingerprint:
                return state
        raise ModelMismatch(
            f"The session belongs to the model {saved.model[:200]!r}, and no model here is the same.",
            param="data",
            hint="Restore it where that model is served.",
        )


def check_steering(steering: Steering, state: ModelState | None) -> None:
    """Check that a model has the concepts of a steering; raises InvalidValue."""
    known = () if state is None or state.readout is None else state.readout.concepts
    for steer in steering:
        if steer.concept not in known:
            raise InvalidValue(
                f"The model has no concept {steer.concept[:64]!r} to steer by.",
                param="steering",
                hint=f"There are: {', '.join(known)}." if known else "Serve it with --concepts PACK.",
            )


def check_image_size(data: bytes, most: int) -> None:
    """Check the size of an image's file; raises InvalidValue."""
    if not 0 < len(data) <= most:
        raise InvalidValue(f"Expected an image of 1 to {most} bytes, found {len(data)}.", param="data")


def check_vocabulary(session: TokenSession, size: int) -> None:
    """Check that all tokens of a session from outside exist; raises InvalidValue."""
    if any(token >= size for token in session.tokens()):
        raise InvalidValue(f"The session has tokens outside the vocabulary of {size}.", param="data")
