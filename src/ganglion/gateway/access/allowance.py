"""One cap of one key in this process, spent out of blocks that the database granted.

Law: `granted_here` was granted to nobody else, so whatever is taken of it is within the cap. It is below zero
where answers came to more than was reserved for them: that is owed, also in the next window, and the next
block pays for it first.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from ganglion.core.errors import ExceedsLimit, GanglionError, NotAllowed, QuotaExceeded, RateLimited
from ganglion.store.access_store import Grant, GrantKind, Period, Window

# Law: a window follows from the wall clock alone, so that gateways on different machines mean the same one.
# Where their clocks differ by a second, one goes on counting in the old minute for that second; no minute's
# cap is exceeded by it.

_MINUTE_S = 60
_DAY_S = 86400
_ALL_TIME = Window(0, None)


def minute_of(now_s: float) -> Window:
    """The minute that runs."""
    start_s = int(now_s) // _MINUTE_S * _MINUTE_S
    return Window(start_s, start_s + _MINUTE_S)


def period_of(period: Period, now_s: float) -> Window:
    """The period of a budget that runs."""
    match period:
        case "day":
            start_s = int(now_s) // _DAY_S * _DAY_S
            return Window(start_s, start_s + _DAY_S)
        case "month":
            first = datetime.fromtimestamp(now_s, UTC).replace(
                day=1, hour=0, minute=0, second=0, microsecond=0
            )
            is_december = first.month == 12
            after = first.replace(year=first.year + is_december, month=1 if is_december else first.month + 1)
            return Window(int(first.timestamp()), int(after.timestamp()))
        case "total":
            return _ALL_TIME


_BLOCK: Final = 64
"""A block lasts for so many requests like the one that asked for it..."""
_SHARE: Final = 8
"""...but is no more than this part of what is left, so that no process shuts up the last of a cap."""
_FRESH_S: Final = 0.25
"""For so long what the database said is left is believed: a key that is refused does not ask each time."""
_NEVER_S: Final = 86400


@dataclass(slots=True)
class Allowance:
    """One cap of one key."""

    key_id: str
    kind: GrantKind
    cap: int
    window_of: Callable[[float], Window]
    window: Window = Window(-1, -1)
    granted_here: int = 0
    """Granted to this process and not reserved."""
    left: int = 0
    """What the database had left when it was last asked."""
    asked_s: float | None = None
    """When that was; None where it was not asked in this window."""
    used_s: float = 0.0
    waiting: list[int] = field(default_factory=list)
    """What those want who wait for the next block."""
    asking: asyncio.Task[GanglionError | None] | None = None

    def turn(self, now_s: float) -> None:
        """Begin the window that runs; what was left of the one before is gone, and what is owed is not."""
        if self.window.end_s is None or (self.window.start_s <= now_s < self.window.end_s):
            return
        window = self.window_of(now_s)
        if window != self.window:
            self.window, self.left, self.asked_s = window, self.cap, None
            self.granted_here = min(0, self.granted_here)

    def is_out_of_reach(self, need: int, now_s: float) -> bool:
        """Whether so much cannot be had, as far as is known."""
        if need > self.cap:
            return True
        is_known = self.asked_s is not None and 0 <= now_s - self.asked_s < _FRESH_S
        return is_known and need - self.granted_here > self.left

    def block(self) -> tuple[int, int]:
        """What to ask for, and the least that helps anybody who waits."""
        smallest = min(self.waiting)
        least = max(1, smallest - self.granted_here)
        amount = max(
            least, sum(self.waiting) - self.granted_here, min(_BLOCK * smallest, self.left // _SHARE)
        )
        return min(amount, self.cap), least

    def granted(self, grant: Grant, window: Window, now_s: float) -> None:
        """Take in what the database gave; a window that ended meanwhile took its grant along."""
        if window == self.window:
            self.granted_here += grant.amount
            self.left, self.asked_s = grant.left, now_s

    def put_back(self, amount: int, window: Window, now_s: float) -> None:
        """Take back what was reserved and not used, or charge what was used beyond it."""
        self.turn(now_s)
        # What was used beyond the reservation is charged to the window in which that becomes known; what was
        # not used is worth something in its own window only.
        if amount < 0 or window == self.window:
            self.granted_here += amount

    def refusal(self, need: int, now_s: float) -> GanglionError:
        """Why so much cannot be had now, and when it can; or that it never can."""
        if need > self.cap:
            return _never(self.kind, need, self.cap)
        end_s = self.window.end_s
        reset_s = _NEVER_S if end_s is None else max(1, math.ceil(end_s - now_s))
        remaining = max(0, self.granted_here + self.left)
        error = _refusal(self.kind, need, self.cap, remaining)
        error.extras = {"limit": self.cap, "remaining": remaining, "reset": reset_s, "kind": self.kind}
        error.retry_after_s = reset_s
        return error


def _never(kind: GrantKind, need: int, cap: int) -> GanglionError:
    match kind:
        case "requests":
            return NotAllowed("The key may make no requests at all.")
        case "tokens":
            message = f"The request may take {need} tokens, and the key has {cap} in a whole minute."
        case "budget":
            message = f"The request may cost {_units(need)}, and the key's whole budget is {_units(cap)}."
    hint = "Shorten the prompt or ask for fewer tokens with max_tokens; waiting does not help."
    return ExceedsLimit(message, hint=hint, extras={"limit": cap, "needed": need, "kind": kind})


def _refusal(kind: GrantKind, need: int, cap: int, remaining: int) -> RateLimited:
    match kind:
        case "requests":
            return RateLimited(
                f"The key's {cap} requests of this minute are used up.", hint="Wait for the next minute."
            )
        case "tokens":
            message = (
                f"The request may take {need} tokens, and the key has {remaining} of {cap} left this minute."
            )
            return RateLimited(message, hint="Wait for the next minute, or ask for fewer with max_tokens.")
        case "budget":
            return QuotaExceeded(
                f"The request may cost {_units(need)}, and the key has {_units(remaining)} of its budget of"
                f" {_units(cap)} left.",
                hint="Ask whoever made the key for a larger budget, or ask for fewer tokens with max_tokens.",
            )


def _units(micros: int) -> str:
    return f"{micros / 1_000_000:.6f}".rstrip("0").rstrip(".")
