"""Requests that took down two nodes: remembered for a while, so that there is no third.

Laws:
* Nodes that are lost together say nothing about a request that ran on both: a loss counts when the request
  was put on the node after the loss before it.
* A node that is lost with other work on it proves nothing: a request is refused only once it took a node down
  while it ran there alone, and another one before that.
* So a request under which a node was lost alone, or two one after the other, is suspected, and runs alone.
* An answer that goes well clears a request of everything.
"""

import enum
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

MAX_REMEMBERED = 1024
SUSPECTED_S = 60.0
"""Within which a second node must be lost: a common request runs on a dying node now and then."""
REMEMBERED_S = 600.0
_MAX_NODES = 2
QUARANTINED_MESSAGE = "This request took down two nodes, and is not tried again for a while."
MUST_WAIT_MESSAGE = "Two nodes were lost under this request, and none is free to try it alone just now."


@dataclass(frozen=True, slots=True)
class LostRequest:
    """A request that was lost with its node."""

    node: str
    number: int
    """Rises from loss to loss."""
    began_after: int
    """The number of the last loss before the request was sent there."""
    is_alone: bool
    """Whether nothing else of this gateway ran there."""


class Suspicion(enum.Enum):
    """How a request is to be run."""

    NONE = "none"
    SUSPECT = "suspect"
    """Alone where a node is free for it, else as any other."""
    GRAVE = "grave"
    """Alone, or not now."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class _SuspectRequest:
    nodes: frozenset[str]
    """Lost under it, one after the other."""
    number: int
    """Of the last loss."""
    suspicion: Suspicion
    until_s: float


class Quarantine:
    """Remembers such requests by their digest, never by their text."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, _SuspectRequest] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is suspected at all."""
        return not self._known

    def blame(self, loss: LostRequest, tenant: str, path: bytes, body: bytes) -> None:
        """Note that a node was lost under this request."""
        key = _digest(tenant, path, body)
        known = self._current(key)
        if known is not None and (known.suspicion is Suspicion.REFUSED or loss.began_after < known.number):
            return
        nodes = frozenset((loss.node,)) if known is None else known.nodes | {loss.node}
        suspicion = _suspicion(nodes, known, loss)
        until_s = self._clock() + (REMEMBERED_S if suspicion is Suspicion.REFUSED else SUSPECTED_S)
        self._known[key] = _SuspectRequest(nodes, loss.number, suspicion, until_s)
        self._known.move_to_end(key)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)

    def acquit(self, tenant: str, path: bytes, body: bytes) -> None:
        """Note that this request was answered, and nothing broke."""
        if self._known:
            self._known.pop(_digest(tenant, path, body), None)

    def suspicion(self, tenant: str, path: bytes, body: bytes) -> Suspicion:
        """How this request is to be run."""
        if not self._known:
            return Suspicion.NONE
        known = self._current(_digest(tenant, path, body))
        return Suspicion.NONE if known is None else known.suspicion

    def is_quarantined(self, tenant: str, path: bytes, body: bytes) -> bool:
        """Whether this request is to be refused."""
        return bool(self._known) and self.suspicion(tenant, path, body) is Suspicion.REFUSED

    def _current(self, key: bytes) -> _SuspectRequest | None:
        known = self._known.get(key)
        if known is not None and self._clock() >= known.until_s:
            del self._known[key]
            return None
        return known


def _suspicion(nodes: frozenset[str], known: _SuspectRequest | None, loss: LostRequest) -> Suspicion:
    if len(nodes) >= _MAX_NODES:
        return Suspicion.REFUSED if loss.is_alone else Suspicion.GRAVE
    if loss.is_alone:
        return Suspicion.SUSPECT
    return Suspicion.NONE if known is None else known.suspicion


def _digest(tenant: str, path: bytes, body: bytes) -> bytes:
    digest = blake2b(digest_size=16)
    for part in (tenant.encode(), path, body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
