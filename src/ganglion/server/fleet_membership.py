"""A node's membership in fleets: the leases that gateways granted, and the conversations it has warm."""

import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ganglion.core.delivery import Delivery, Room, Sink, generate_into, pulled
from ganglion.core.engine import Engine, ModelState
from ganglion.core.errors import LeaseLost
from ganglion.core.events import Event, Started
from ganglion.core.request import Request

MAX_AFFINITIES: Final = 512
"""More conversations than these are rarely warm at once, and all of them are sent at each change."""

AFFINITY_PATTERN: Final = "[0-9a-f]{1,64}"
_AFFINITY: Final = re.compile(AFFINITY_PATTERN)


class WarmConversations:
    """The affinities of the latest conversations, the newest last."""

    def __init__(self) -> None:
        self._affinities: dict[str, None] = {}

    def record(self, affinity: str) -> None:
        """Add a conversation that is warm now; an affinity that no gateway gives is not kept."""
        if not _AFFINITY.fullmatch(affinity):
            return
        self._affinities.pop(affinity, None)
        self._affinities[affinity] = None
        if len(self._affinities) > MAX_AFFINITIES:
            del self._affinities[next(iter(self._affinities))]

    def affinities(self) -> tuple[str, ...]:
        """All of them, the newest last."""
        return tuple(self._affinities)


class AffinityRecordingEngine:
    """An engine that records the affinity of each request that the inner one starts."""

    def __init__(self, inner: Engine, conversations: WarmConversations) -> None:
        self._inner = inner
        self._conversations = conversations

    def models(self) -> tuple[ModelState, ...]:
        """The inner engine's."""
        return self._inner.models()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The inner engine's stream, unchanged."""
        return pulled(partial(self.generate_into, request))

    def generate_into(self, request: Request, sink: Sink[Event]) -> Delivery:
        """Deliver the inner engine's answer, unchanged."""
        if not request.affinity:
            return generate_into(self._inner, request, sink)

        def record(events: Sequence[Event]) -> Room:
            if any(isinstance(event, Started) for event in events):
                self._conversations.record(request.affinity)
            return sink(events)

        return generate_into(self._inner, request, record)


# Law: a lease counts from when it was asked for, on this machine's monotonic clock; when its time is over
# nothing runs under it, whether or not anybody has noticed.

_EPOCH: Final = re.compile(rb"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class _HeldLease:
    """A lease, and when it ends on the monotonic clock."""

    epoch: int
    until_s: float


class Leases:
    """The leases that gateways granted; `is_joining` says whether this node asks any for one."""

    def __init__(self, *, is_joining: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_joining = is_joining
        self._clock = clock
        self._held: dict[str, _HeldLease] = {}

    def hold(self, gateway: str, epoch: int, until_s: float) -> None:
        """Keep a lease that was granted, in place of the one before."""
        self._held[gateway] = _HeldLease(epoch, until_s)

    def drop(self, gateway: str) -> None:
        """Forget a lease that was given back."""
        self._held.pop(gateway, None)

    def epoch_of(self, gateway: str) -> int | None:
        """The epoch of the lease that this gateway granted; None where there is none, or it is over."""
        held = self._held.get(gateway)
        return held.epoch if held is not None and self._clock() < held.until_s else None

    @property
    def epoch(self) -> int | None:
        """The epoch of the first lease that is held."""
        return next(iter(self._epochs()), None)

    def check(self, epoch: bytes) -> None:
        """Raise LeaseLost for work under a lease that this node does not hold."""
        if not self._is_joining:
            return
        if not _EPOCH.fullmatch(epoch) or int(epoch) not in self._epochs():
            raise LeaseLost(
                "This node does not hold the lease under which the work was sent.",
                hint="Send it to another node.",
                extras={"epoch": self.epoch},
            )

    def _epochs(self) -> list[int]:
        now_s = self._clock()
        return [held.epoch for held in self._held.values() if now_s < held.until_s]


def _new_boot_id() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class FleetMembership:
    """The id of this start of the node, the leases it holds, and the conversations it has warm."""

    boot: str = field(default_factory=_new_boot_id)
    leases: Leases = field(default_factory=Leases)
    conversations: WarmConversations = field(default_factory=WarmConversations)
