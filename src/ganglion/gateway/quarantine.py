"""Requests that took down two nodes: remembered for a while, so that there is no third.

Law: a request is blamed for each node that was lost under it, whether or not it had begun to answer; two
different nodes within a minute, and no answer in between that went well, are enough.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

MAX_REMEMBERED = 1024
SUSPECTED_S = 60.0
"""Within which a second node must be lost: what everybody asks all day runs on a dying one now and then."""
REMEMBERED_S = 600.0
MAX_NODES = 2
TOOK_DOWN = "This request took down two nodes, and is not tried again for a while."


@dataclass(frozen=True, slots=True)
class _Suspicion:
    nodes: frozenset[str]
    until_s: float


class Quarantine:
    """Knows such requests by their digest, never by their words."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.on_add: Callable[[bytes], None] = lambda digest: None
        """Told of each that was found out here, for other processes to know it, too."""
        self._suspected: OrderedDict[bytes, _Suspicion] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is suspected at all."""
        return not self._suspected

    def blame(self, node: str, tenant: str, path: bytes, body: bytes) -> None:
        """A node was lost under this request."""
        key = _digest(tenant, path, body)
        known = self._suspected.get(key)
        now_s = self._clock()
        before = known.nodes if known is not None and now_s < known.until_s else frozenset()
        nodes = before | {node}
        is_found_out = len(nodes) >= MAX_NODES
        self._put(key, _Suspicion(nodes, now_s + (REMEMBERED_S if is_found_out else SUSPECTED_S)))
        if is_found_out and len(before) < MAX_NODES:
            self.on_add(key)

    def acquit(self, tenant: str, path: bytes, body: bytes) -> None:
        """It was answered, and nothing broke."""
        if self._suspected:
            self._suspected.pop(_digest(tenant, path, body), None)

    def hold(self, digest: bytes) -> None:
        """Refuse what another process found out; what is refused already is not refused for longer."""
        if digest not in self.held:
            self._put(digest, _Suspicion(frozenset(("", "elsewhere")), self._clock() + REMEMBERED_S))

    @property
    def held(self) -> frozenset[bytes]:
        """All that is refused now."""
        now_s = self._clock()
        return frozenset(
            digest
            for digest, known in self._suspected.items()
            if now_s < known.until_s and len(known.nodes) >= MAX_NODES
        )

    def _put(self, key: bytes, suspicion: _Suspicion) -> None:
        self._suspected[key] = suspicion
        self._suspected.move_to_end(key)
        if len(self._suspected) > MAX_REMEMBERED:
            self._suspected.popitem(last=False)

    def holds(self, tenant: str, path: bytes, body: bytes) -> bool:
        """Whether this request is to be refused."""
        if not self._suspected:
            return False
        key = _digest(tenant, path, body)
        known = self._suspected.get(key)
        if known is None:
            return False
        if self._clock() >= known.until_s:
            del self._suspected[key]
            return False
        return len(known.nodes) >= MAX_NODES


def _digest(tenant: str, path: bytes, body: bytes) -> bytes:
    digest = blake2b(digest_size=16)
    for part in (tenant.encode(), path, body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
