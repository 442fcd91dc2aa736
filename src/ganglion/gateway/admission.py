"""Who may come in, and how much they may take: what the proxy asks of whoever keeps the keys."""

from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec import Struct

from ganglion.core.events import Usage

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


EVERYBODY = Identity("", role="admin")
"""Where there are no keys at all."""


class Wanted(Struct, frozen=True, gc=False):
    """What a request will take at most; a struct, since one is made for each."""

    model: str
    tokens: int
    """Of prompt and answer together, as far as anybody can tell before."""


class Admission(Protocol):
    """A place that was reserved."""

    def settle(self, usage: Usage | None) -> None:
        """Say once what it came to; None where nothing ran, and everything is given back."""
        ...


class Gatekeeper(Protocol):
    """Knows keys and counts what they take."""

    def identify(self, key: bytes | None) -> Identity:
        """Whose key it is; raises InvalidApiKey. Cheap: it is asked once a request."""
        ...

    def admit_now(self, identity: Identity, wanted: Wanted) -> Admission | None:
        """Reserve a place at once; None where that takes asking a database. Raises as `admit` does."""
        ...

    async def admit(self, identity: Identity, wanted: Wanted) -> Admission:
        """Reserve a place; raises NotAllowed, RateLimited, QuotaExceeded, and StoreUnavailable where the
        database that counts cannot be asked."""
        ...
