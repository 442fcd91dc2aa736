"""The leases under which gateways send work here.

Law: a lease counts from when it was asked for, on this machine's monotonic clock; when its time is over
nothing runs under it, whether or not anybody has noticed.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ganglion.core.errors import LeaseLost

_EPOCH: Final = re.compile(rb"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Held:
    """A lease and when it is over."""

    epoch: int
    until_s: float


class Leases:
    """What each gateway granted; `is_joining` says whether this node asks any for a lease."""

    def __init__(self, *, is_joining: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_joining = is_joining
        self._clock = clock
        self._held: dict[str, Held] = {}

    def hold(self, gateway: str, epoch: int, until_s: float) -> None:
        """Granted, in place of the one before."""
        self._held[gateway] = Held(epoch, until_s)

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
