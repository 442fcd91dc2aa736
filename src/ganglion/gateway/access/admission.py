"""Identities, and the admission of their requests: what the proxy asks of a gatekeeper."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal, Protocol

from msgspec import Struct

from ganglion.core.errors import NotAllowed
from ganglion.core.events import Usage
from ganglion.core.request import MOST_URGENT

Role = Literal["user", "node", "admin"]
"""A user calls models; a node may join the fleet; an admin may do everything."""


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
    """Answers whose length the request does not bound: the admission says how long each may be."""
    answer_tokens: int | None = None
    """What each of these is at most; None where that is not known."""


class Admission(Protocol):
    """A request that was admitted, with what is reserved for it."""

    @property
    def answer_tokens(self) -> int | None:
        """How long each answer may be whose length the request does not bound; None for no bound."""

    @property
    def model(self) -> str:
        """What its answer is booked as: one of a bounded set of names."""

    async def reserve_more(self, request: AdmissionRequest) -> None:
        """Reserve what is missing, where the request may use more than was known; raises as `admit` does."""

    def answered_by(self, model: str) -> None:
        """Note which model answers, as it is booked; it need not be the one that was requested."""

    def settle(self, usage: Usage | None) -> None:
        """Count what the request used; None where nothing ran, and everything is given back."""


class Gatekeeper(Protocol):
    """Knows keys, and counts what they use."""

    def identify(self, key: bytes | None) -> Identity:
        """Whose key it is; raises InvalidApiKey. Cheap: it is called for each request."""

    def admit_now(self, identity: Identity, request: AdmissionRequest) -> Admission | None:
        """Admit a request at once; None where that takes asking a database. Raises as `admit` does."""

    async def admit(self, identity: Identity, request: AdmissionRequest) -> Admission:
        """Admit a request; raises NotAllowed, RateLimited, QuotaExceeded, and StoreUnavailable where the
        database cannot be asked."""


# The proxy admits each request, and the control app answers some of them in another task of the same process.
# The proxy names the admission in an internal header; whoever answers finds it in the task's context.

_PROXY_ADMISSION: Final[ContextVar[Admission | None]] = ContextVar("proxy_admission", default=None)
"""The proxy's admission."""
_OWN_ADMISSION: Final[ContextVar[Admission | None]] = ContextVar("own_admission", default=None)
"""The control app's own, for requests that the proxy passes on without one."""


class OpenAdmissions:
    """The admissions of requests that are at the control app now, by the ids that the proxy gave them."""

    def __init__(self) -> None:
        self._open: dict[bytes, Admission] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, admission: Admission) -> bytes:
        """An id for an admission, until it is closed."""
        admission_id = b"%d" % next(self._numbers)
        self._open[admission_id] = admission
        return admission_id

    def close(self, admission_id: bytes) -> None:
        """The request is over."""
        self._open.pop(admission_id, None)

    def find(self, admission_id: bytes | None) -> Admission | None:
        """The admission of that id; None where there is none."""
        return None if admission_id is None else self._open.get(admission_id)


@contextmanager
def admission_scope(admission: Admission | None) -> Iterator[None]:
    """Let what runs inside, in this task and in those that it starts, count for an admission."""
    token = _PROXY_ADMISSION.set(admission)
    try:
        yield
    finally:
        _PROXY_ADMISSION.reset(token)


def use_own_admission(admission: Admission) -> None:
    """From now on, what this task does counts for an admission of the control app's own."""
    _OWN_ADMISSION.set(admission)


def proxy_admission() -> Admission | None:
    """The proxy's admission of the request that runs now; None where it made none."""
    return _PROXY_ADMISSION.get()


def note_answering_model(model: str) -> None:
    """Note which model answers what runs now."""
    admission = _OWN_ADMISSION.get() or _PROXY_ADMISSION.get()
    if admission is not None:
        admission.answered_by(model)
