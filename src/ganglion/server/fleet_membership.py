"""What a node and its gateways know of each other."""

import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from ganglion.core.engine import Engine, ModelState
from ganglion.core.errors import LeaseLost
from ganglion.core.events import Event, Started
from ganglion.core.request import Request

MAX_AFFINITIES: Final = 512
"""More conversations than these are rarely warm at once, and all of them are told at each change."""

_AFFINITY: Final = re.compile(r"[0-9a-f]{1,64}")


class WarmConversations:
    """The affinities that were last seen, the latest last."""

    def __init__(self) -> None:
        self._affinities: dict[str, None] = {}

    def note(self, affinity: str) -> None:
        """One that is warm now; a name that no gateway gives is not kept."""
        if not _AFFINITY.fullmatch(affinity):
            return
        self._affinities.pop(affinity, None)
        self._affinities[affinity] = None
        if len(self._affinities) > MAX_AFFINITIES:
            del self._affinities[next(iter(self._affinities))]

    def told(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._affinities)


class AffinityRecordingEngine:
    """An engine that notes the affinity of each request that another one starts."""

    def __init__(self, inner: Engine, digest: WarmConversations) -> None:
        self._inner = inner
        self._digest = digest

    def models(self) -> tuple[ModelState, ...]:
        """The inner engine's."""
        return self._inner.models()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The inner engine's stream, unchanged."""
        events = self._inner.generate(request)
        return self._noted(events, request.affinity) if request.affinity else events

    async def _noted(self, events: AsyncGenerator[Event, None], affinity: str) -> AsyncGenerator[Event, None]:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Started):
                    self._digest.note(affinity)
                yield event


# Law: a lease counts from when it was asked for, on this machine's monotonic clock; when its time is over
# nothing runs under it, whether or not anybody has noticed.

_EPOCH: Final = re.compile(rb"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease and when it is over."""

    epoch: int
    until_s: float


class Leases:
    """What each gateway granted; `is_joining` says whether this node asks any for a lease."""

    def __init__(self, *, is_joining: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_joining = is_joining
        self._clock = clock
        self._held: dict[str, HeldLease] = {}

    def hold(self, gateway: str, epoch: int, until_s: float) -> None:
        """Granted, in place of the one before."""
        self._held[gateway] = HeldLease(epoch, until_s)

    def drop(self, gateway: str) -> None:
        """Given back."""
        self._held.pop(gateway, None)

    def epoch_of(self, gateway: str) -> int | None:
        """Of the lease that this gateway granted; None where there is none, or it is over."""
        held = self._held.get(gateway)
        return held.epoch if held is not None and self._clock() < held.until_s else None

    @property
    def epoch(self) -> int | None:
        """Of the first lease that is held."""
        return next(iter(self._epochs()), None)

    def check(self, epoch: bytes | None) -> None:
        """Raise LeaseLost for work under a lease that is not held; None is work under none."""
        if epoch is None or not self._is_joining:
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
    """Which start of the node this is, the leases it holds, and the conversations it knows."""

    boot: str = field(default_factory=_new_boot_id)
    leases: Leases = field(default_factory=Leases)
    digest: WarmConversations = field(default_factory=WarmConversations)
