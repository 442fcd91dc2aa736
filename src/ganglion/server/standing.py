"""What a node and its gateways know of each other."""

import secrets
from dataclasses import dataclass, field

from ganglion.server.digest import Digest
from ganglion.server.leases import Leases


def _boot() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Standing:
    """Which start of the node this is, the leases it holds, and the conversations it knows."""

    boot: str = field(default_factory=_boot)
    leases: Leases = field(default_factory=Leases)
    digest: Digest = field(default_factory=Digest)
