"""A session's id as the gateway gives it out: `NODE~ID~MAC`, so that nobody must remember where it is.

Law: the MAC covers the tenant, the node and the id. Whoever brings another tenant's handle is given what they
are given of one that never was.
"""

import hmac
from hashlib import blake2b
from typing import Final, NamedTuple

from ganglion.core.errors import SessionNotFound

_MARK: Final = "~"
"""In no node's name (`wire.fleet.Name`)."""
_MAC_BYTES: Final = 8


class SessionLocation(NamedTuple):
    """The node of a session, and its id there."""

    node: str
    id: str


class SessionHandles:
    """Writes handles and reads them, under one secret for all gateways of a fleet."""

    def __init__(self, secret: bytes) -> None:
        self._key = blake2b(secret).digest()

    def write(self, tenant: str, location: SessionLocation) -> str:
        """The handle under which a tenant finds its session again."""
        return _MARK.join((location.node, location.id, self._mac(tenant, location)))

    def read(self, tenant: str, handle: str) -> SessionLocation:
        """Where a tenant's session is; raises SessionNotFound for anything else."""
        node, _, rest = handle.partition(_MARK)
        session_id, _, mac = rest.rpartition(_MARK)
        location = SessionLocation(node, session_id)
        given = mac.encode(errors="surrogatepass")
        if not session_id or not hmac.compare_digest(given, self._mac(tenant, location).encode()):
            raise SessionNotFound(handle)
        return location

    def _mac(self, tenant: str, location: SessionLocation) -> str:
        digest = blake2b(key=self._key, digest_size=_MAC_BYTES)
        for part in (tenant, *location):
            encoded = part.encode(errors="surrogatepass")
            digest.update(b"%d:" % len(encoded))
            digest.update(encoded)
        return digest.hexdigest()
