"""What a server remembers from one request to the next."""

import secrets
from dataclasses import dataclass, field

from ganglion.server.background import Background
from ganglion.server.metering import Meter, Unmetered
from ganglion.store.port import Store
from ganglion.wire.seal import HmacSeal

SEAL_BYTES = 32


def _fresh_seal() -> HmacSeal:
    return HmacSeal(secrets.token_bytes(SEAL_BYTES))


@dataclass(frozen=True, slots=True)
class State:
    """The store, None for a server that keeps nothing; the seal of what leaves; what outlives its request,
    and who counts that."""

    store: Store | None = None
    seal: HmacSeal = field(default_factory=_fresh_seal)
    background: Background = field(default_factory=Background)
    meter: Meter = field(default_factory=Unmetered)
