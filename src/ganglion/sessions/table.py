"""The table of sessions: their owners, how long each is idle, and how much all of them hold. Pure.

Law: a session is known to its tenant alone, and one call at a time changes it. Time is handed in.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ganglion.core.errors import GanglionError, SessionBusy, SessionNotFound, TooManySessions
from ganglion.core.request import ImageBlock, Steering, salt_of
from ganglion.core.sampling import Sampling
from ganglion.sessions.held_images import HeldImages
from ganglion.sessions.settings import SessionSettings
from ganglion.sessions.token_session import TokenSession


@dataclass(slots=True, eq=False)
class SessionRecord:
    """A session with its owner, model and limits; while it is suspended its tokens are on disk."""

    id: str
    tenant: str
    model: str
    context_length: int
    ttl_s: float
    used_s: float
    steering: Steering = ()
    sampling: Sampling = Sampling()
    """The model's own defaults."""
    session: TokenSession | None = None
    suspended_tokens: int = 0
    suspended_images: int = 0
    is_busy: bool = False
    is_closed: bool = False
    counted_tokens: int = 0
    """What it adds to the sum of all sessions, as of its last change."""
    counted_images: tuple[ImageBlock, ...] = ()

    @property
    def length(self) -> int:
        """How many tokens it has, in memory or on disk."""
        return self.suspended_tokens if self.session is None else self.session.length

    @property
    def image_count(self) -> int:
        """How many images it has, in memory or on disk."""
        return self.suspended_images if self.session is None else len(self.session.images)

    @property
    def salt(self) -> str:
        """The salt under which its KV is cached."""
        return salt_of(self.tenant, self.steering)


class SessionTable:
    """All sessions of all tenants, within the operator's limits."""

    def __init__(self, settings: SessionSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._records: dict[str, SessionRecord] = {}
        self._counts: Counter[str] = Counter()
        self.tokens = 0
        """Of all sessions in memory."""
        self.images = HeldImages(settings)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[SessionRecord]:
        return iter(tuple(self._records.values()))

    def add(self, record: SessionRecord) -> SessionRecord:
        """Add a session."""
        self._records[record.id] = record
        self._counts[record.tenant] += 1
        self.count(record)
        return record

    def find(self, tenant: str, session_id: str) -> SessionRecord:
        """A tenant's session; raises SessionNotFound for any other."""
        record = self._records.get(session_id)
        if record is None or record.tenant != tenant or self.is_expired(record):
            raise SessionNotFound(session_id)
        return record

    def of(self, tenant: str) -> tuple[SessionRecord, ...]:
        """A tenant's own sessions."""
        return tuple(record for record in self if record.tenant == tenant and not self.is_expired(record))

    def remove(self, record: SessionRecord) -> None:
        """Remove a session; a call that runs in it notices."""
        record.is_closed = True
        if self._records.pop(record.id, None) is not None:
            self._counts[record.tenant] -= 1
            if not self._counts[record.tenant]:
                del self._counts[record.tenant]
            self._count(record, None)

    def sweep(self) -> None:
        """Remove the sessions that no call named within their time to live."""
        for record in self:
            if self.is_expired(record):
                self.remove(record)

    def is_expired(self, record: SessionRecord) -> bool:
        """Whether no call named it within its time to live; a suspended one never expires."""
        is_in_memory = record.session is not None
        return is_in_memory and not record.is_busy and self._clock() - record.used_s > record.ttl_s

    def idle_s(self, record: SessionRecord) -> float:
        """For how long no call has named a session."""
        return 0.0 if record.is_busy else max(self._clock() - record.used_s, 0.0)

    def ttl_s(self, requested_s: float | None) -> float:
        """How long a session may be idle, within the operator's limits."""
        settings = self._settings
        return min(settings.default_ttl_s if requested_s is None else requested_s, settings.max_ttl_s)

    def touch(self, record: SessionRecord) -> None:
        """Note that a call named it now."""
        record.used_s = self._clock()

    @contextmanager
    def exclusive(self, record: SessionRecord) -> Iterator[None]:
        """One call at a time; its errors carry the session's length."""
        with adding_session_length(record):
            if record.is_busy:
                raise SessionBusy(
                    "Another call is changing this session.", hint="Wait for it, or cancel it, or fork."
                )
            record.is_busy = True
            try:
                yield
            finally:
                record.is_busy = False
                self.touch(record)
                if not record.is_closed:
                    self.count(record)

    def check_count(self, tenant: str) -> None:
        """Check that a tenant may have one more session; raises TooManySessions."""
        most = self._settings.max_per_key
        if self._counts[tenant] >= most:
            self.sweep()
        if self._counts[tenant] >= most:
            raise TooManySessions(
                f"{most} sessions are open under this key, which is as many as it may have.",
                hint="Close some, or let them expire.",
                extras={"limit": most},
            )

    def check_tokens(self, more: int) -> None:
        """Check that the sessions may hold so many more tokens; raises TooManySessions."""
        most = self._settings.max_tokens
        if more > 0 and self.tokens + more > most:
            raise TooManySessions(
                f"All sessions together may hold {most} tokens.",
                hint="Close or suspend some.",
                extras={"limit": most},
            )

    def count(self, record: SessionRecord) -> None:
        """Update the sums by how much a session holds now."""
        self._count(record, record.session)

    def _count(self, record: SessionRecord, session: TokenSession | None) -> None:
        tokens, images = (0, ()) if session is None else (session.length, session.images)
        self.tokens += tokens - record.counted_tokens
        record.counted_tokens = tokens
        record.counted_images = self.images.replace(record.tenant, record.counted_images, images)


@contextmanager
def adding_session_length(record: SessionRecord) -> Iterator[None]:
    """Add the session's length to errors about it."""
    try:
        yield
    except GanglionError as error:
        if not isinstance(error, SessionNotFound):
            error.extras.setdefault("session_length", record.length)
        raise
