"""Which sessions there are: whose each is, how long nobody named it, and how much all of them hold. Pure.

Law: a session is known to its tenant alone, and one call at a time changes it. Time is handed in.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ganglion.core.errors import GanglionError, SessionBusy, SessionNotFound, TooManySessions
from ganglion.core.request import Sampling, Steering, salt_of
from ganglion.sessions.settings import SessionSettings
from ganglion.sessions.token_session import TokenSession


@dataclass(slots=True, eq=False)
class SessionRecord:
    """A session with what surrounds it; while it is suspended its tokens lie on disk."""

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

    @property
    def length(self) -> int:
        """How many tokens it has, wherever they lie."""
        return self.suspended_tokens if self.session is None else self.session.length

    @property
    def image_count(self) -> int:
        """How many images it has, wherever they lie."""
        return self.suspended_images if self.session is None else len(self.session.images)

    @property
    def salt(self) -> str:
        """What its KV is cached under."""
        return salt_of(self.tenant, self.steering)


class SessionTable:
    """All sessions of all tenants, within the operator's limits."""

    def __init__(self, settings: SessionSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._held: dict[str, SessionRecord] = {}
        self._counts: Counter[str] = Counter()
        self.tokens = 0
        """Of all sessions in memory."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[SessionRecord]:
        return iter(tuple(self._held.values()))

    def add(self, held: SessionRecord) -> SessionRecord:
        """Hold a session."""
        self._held[held.id] = held
        self._counts[held.tenant] += 1
        self.count(held)
        return held

    def find(self, tenant: str, session_id: str) -> SessionRecord:
        """A tenant's session; raises SessionNotFound for any other."""
        held = self._held.get(session_id)
        if held is None or held.tenant != tenant or self.is_expired(held):
            raise SessionNotFound(session_id)
        return held

    def of(self, tenant: str) -> tuple[SessionRecord, ...]:
        """A tenant's own sessions."""
        return tuple(held for held in self if held.tenant == tenant and not self.is_expired(held))

    def forget(self, held: SessionRecord) -> None:
        """Let go of a session; a call that runs in it notices."""
        held.is_closed = True
        if self._held.pop(held.id, None) is not None:
            self._counts[held.tenant] -= 1
            if not self._counts[held.tenant]:
                del self._counts[held.tenant]
            self.tokens -= held.counted_tokens
            held.counted_tokens = 0

    def sweep(self) -> None:
        """Forget the sessions that nobody named in their time."""
        for held in self:
            if self.is_expired(held):
                self.forget(held)

    def is_expired(self, held: SessionRecord) -> bool:
        """Whether nobody named it in its time; what lies on disk waits for ever."""
        is_awake = held.session is not None
        return is_awake and not held.is_busy and self._clock() - held.used_s > held.ttl_s

    def idle_s(self, held: SessionRecord) -> float:
        """For how long nobody has named a session."""
        return 0.0 if held.is_busy else max(self._clock() - held.used_s, 0.0)

    def ttl_s(self, asked_s: float | None) -> float:
        """How long a session may be idle."""
        settings = self._settings
        return min(settings.default_ttl_s if asked_s is None else asked_s, settings.max_ttl_s)

    def touch(self, held: SessionRecord) -> None:
        """Somebody named it just now."""
        held.used_s = self._clock()

    @contextmanager
    def changing(self, held: SessionRecord) -> Iterator[None]:
        """One call at a time; its errors say how long the session is."""
        with adding_session_length(held):
            if held.is_busy:
                raise SessionBusy(
                    "Another call is changing this session.", hint="Wait for it, or cancel it, or fork."
                )
            held.is_busy = True
            try:
                yield
            finally:
                held.is_busy = False
                self.touch(held)
                if not held.is_closed:
                    self.count(held)

    def check_count(self, tenant: str) -> None:
        """Whether a tenant may have one more session; raises TooManySessions."""
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
        """Whether so many more tokens may be held; raises TooManySessions."""
        most = self._settings.max_tokens
        if more > 0 and self.tokens + more > most:
            raise TooManySessions(
                f"All sessions together may hold {most} tokens.",
                hint="Close or suspend some.",
                extras={"limit": most},
            )

    def count(self, held: SessionRecord) -> None:
        """Take note of how much a session holds now."""
        now = 0 if held.session is None else held.session.length
        self.tokens += now - held.counted_tokens
        held.counted_tokens = now


@contextmanager
def adding_session_length(held: SessionRecord) -> Iterator[None]:
    """Errors about a session say how long it is."""
    try:
        yield
    except GanglionError as error:
        if not isinstance(error, SessionNotFound):
            error.extras.setdefault("session_length", held.length)
        raise
