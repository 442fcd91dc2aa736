"""Requests that took down two nodes: remembered for a while, so that there is no third."""

import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b

MAX_REMEMBERED = 1024
REMEMBERED_S = 600.0


class Quarantine:
    """Knows such requests by their digest, never by their words."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.on_add: Callable[[bytes], None] = lambda digest: None
        """Told of each that was found out here, for other processes to know it, too."""
        self._until_s: OrderedDict[bytes, float] = OrderedDict()

    def add(self, tenant: str, path: bytes, body: bytes) -> None:
        """Refuse this request from now on, for a while."""
        key = _digest(tenant, path, body)
        self._until_s.pop(key, None)
        self.hold(key)
        self.on_add(key)

    def hold(self, digest: bytes) -> None:
        """Refuse what another process found out; what is refused already is not refused for longer."""
        if digest not in self._until_s:
            self._until_s[digest] = self._clock() + REMEMBERED_S
            if len(self._until_s) > MAX_REMEMBERED:
                self._until_s.popitem(last=False)

    @property
    def held(self) -> frozenset[bytes]:
        """All that is refused now."""
        now_s = self._clock()
        return frozenset(digest for digest, until_s in self._until_s.items() if now_s < until_s)

    def holds(self, tenant: str, path: bytes, body: bytes) -> bool:
        """Whether this request is to be refused."""
        if not self._until_s:
            return False
        key = _digest(tenant, path, body)
        until_s = self._until_s.get(key)
        if until_s is None:
            return False
        if self._clock() < until_s:
            return True
        del self._until_s[key]
        return False


def _digest(tenant: str, path: bytes, body: bytes) -> bytes:
    digest = blake2b(digest_size=16)
    for part in (tenant.encode(), path, body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
