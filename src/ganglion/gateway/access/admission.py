"""Who may come in, and how much they may take: what the proxy asks of whoever keeps the keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal, Protocol

from msgspec import Struct

from ganglion.core.errors import NotAllowed
from ganglion.core.events import Usage

Role = Literal["user", "node", "admin"]
"""A user calls models; a node may join the fleet; an admin may do everything."""
MOST_URGENT: Final = -1000
"""The lowest priority that there is."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose request it is."""

    tenant: str
    key_id: str = ""
    """Names the key without being it; empty where there are no keys."""
    role: Role = "user"
    models: frozenset[str] | None = None
    """The names that this key may ask for; None for all."""
    priority: int = 0
    """The most urgent that its requests may be."""
    is_limited: bool = False
    """Whether anything is counted against it before it runs."""
    is_metered: bool = False
    """Whether tokens or their cost are: then what a request can take must be known before."""

    def of_these(self, models: frozenset[str]) -> frozenset[str]:
        """Those of the models that it may ask for."""
        return models if self.models is None else models & self.models


EVERYBODY = Identity("", role="admin", priority=MOST_URGENT)
"""Where there are no keys at all."""


def require_role(identity: Identity, role: Role) -> None:
    """Raise NotAllowed where a key's role is neither this one nor an admin's."""
    if identity.role not in ("admin", role):
        raise NotAllowed("This key may not do that.", hint=f"It takes a key of role {role}.")


class AdmissionRequest(Struct, frozen=True, gc=False):
    """What a request can take at most; a struct, since one is made for each."""

    model: str
    tokens: int = 0
    """Of its prompts and of the answers that are bounded, together."""
    open_answers: int = 0
    """Answers that nobody has bounded: the place says how long each may be."""
    answer_tokens: int | None = None
    """What each of these is at most; None where nobody says."""


class Admission(Protocol):
    """A place that was reserved."""

    @property
    def answer_tokens(self) -> int | None:
        """How long each answer may be that nobody bounded; None for as long as it likes."""
        ...

    @property
    def model(self) -> str:
        """What its answer is booked as: one of a bounded set of names."""
        ...

    async def reserve_more(self, wanted: AdmissionRequest) -> None:
        """Reserve what is missing where it turns out that so much can be taken; raises as `admit` does."""
        ...

    def answered_by(self, model: str) -> None:
        """Say which model answers, as it is booked; it need not be the one that was asked for."""
        ...

    def settle(self, usage: Usage | None) -> None:
        """Say once what it came to; None where nothing ran, and everything is given back."""
        ...


class Gatekeeper(Protocol):
    """Knows keys and counts what they take."""

    def identify(self, key: bytes | None) -> Identity:
        """Whose key it is; raises InvalidApiKey. Cheap: it is asked once a request."""
        ...

    def admit_now(self, identity: Identity, wanted: AdmissionRequest) -> Admission | None:
        """Reserve a place at once; None where that takes asking a database. Raises as `admit` does."""
        ...

    async def admit(self, identity: Identity, wanted: AdmissionRequest) -> Admission:
        """Reserve a place; raises NotAllowed, RateLimited, QuotaExceeded, and StoreUnavailable where the
        database that counts cannot be asked."""
        ...


# The front reserves a place for each request, the desk answers some of them in another task of the same
# process. The front names the place in a header of its own; whoever answers finds it in the task's context.

_PROXY_ADMISSION: Final[ContextVar[Admission | None]] = ContextVar("place", default=None)
"""What the front reserved."""
_OWN_ADMISSION: Final[ContextVar[Admission | None]] = ContextVar("own", default=None)
"""What the desk reserved by itself, for what the front lets by."""


class OpenAdmissions:
    """The places of requests that are at the desk now, by the names that the front gave them."""

    def __init__(self) -> None:
        self._open: dict[bytes, Admission] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, place: Admission) -> bytes:
        """A name for a place, until it is closed."""
        name = b"%d" % next(self._numbers)
        self._open[name] = place
        return name

    def close(self, name: bytes) -> None:
        """The request is over."""
        self._open.pop(name, None)

    def find(self, name: bytes | None) -> Admission | None:
        """The place of that name; None where there is none."""
        return None if name is None else self._open.get(name)


@contextmanager
def admission_scope(place: Admission | None) -> Iterator[None]:
    """Let what runs inside, in this task and in those that it starts, count for a place."""
    token = _PROXY_ADMISSION.set(place)
    try:
        yield
    finally:
        _PROXY_ADMISSION.reset(token)


def use_own_admission(place: Admission) -> None:
    """From now on, what this task does counts for a place that the desk reserved."""
    _OWN_ADMISSION.set(place)


def proxy_admission() -> Admission | None:
    """What the front reserved for the request that runs now; None where it let it by."""
    return _PROXY_ADMISSION.get()


def note_answering_model(model: str) -> None:
    """Say which model answers what runs now."""
    place = _OWN_ADMISSION.get() or _PROXY_ADMISSION.get()
    if place is not None:
        place.answered_by(model)
