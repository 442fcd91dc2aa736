"""Limits of keys over any number of gateways: reserved in memory, out of blocks that the database grants.

Laws: what is admitted in a window never exceeds its cap, however many processes and requests there are; a
cap of C admits exactly C where at least C ask of one process. Nothing is held while waiting: a request takes
of all its caps at once, or of none. Where the database cannot be used, a key that has caps is refused once
its block is used up: nobody could say what others have taken.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ganglion.core.errors import GanglionError
from ganglion.gateway.access.allowance import Allowance, minute_of, period_of
from ganglion.store.access_store import AccessStore, GrantKind, StoredKey, Window

_IDLE_S: Final = 3.0
"""What was not used for so long is given back, for other gateways to use."""


@dataclass(frozen=True, slots=True)
class LimitNeed:
    """What a request takes of each cap at most."""

    tokens: int
    cost: int
    requests: int = 1


@dataclass(frozen=True, slots=True)
class KeyCaps:
    """What a key may have of tokens and of cost; None for no end."""

    tokens: int | None
    cost: int | None


@dataclass(frozen=True, slots=True)
class LimitReservation:
    """What was taken of which caps, each in its window."""

    parts: tuple[tuple[Allowance, Window, int], ...]


class KeyLimits:
    """The caps of every key that has some."""

    def __init__(self, store: AccessStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._allowances: dict[str, tuple[Allowance, ...]] = {}
        self._asking: set[asyncio.Task[GanglionError | None]] = set()

    def configure(self, keys: dict[str, StoredKey]) -> None:
        """These keys have caps, and no others; what a key holds it keeps while its caps are the same."""
        kept = {}
        for key_id, key in keys.items():
            before = {each.kind: each for each in self._allowances.get(key_id, ())}
            made = _allowances(key)
            kept[key_id] = tuple(
                before[each.kind] if each.kind in before and _is_same(before[each.kind], each) else each
                for each in made
            )
        self._allowances = kept

    def caps_of(self, key_id: str) -> KeyCaps:
        """What a key may have at most, however long it waits."""
        by_kind = {each.kind: each.cap for each in self._allowances.get(key_id, ())}
        return KeyCaps(by_kind.get("tokens"), by_kind.get("budget"))

    def left_of(self, key_id: str) -> KeyCaps:
        """What a key may have now, as far as is known here."""
        now_s = self._clock()
        by_kind: dict[GrantKind, int] = {}
        for allowance in self._allowances.get(key_id, ()):
            allowance.turn(now_s)
            by_kind[allowance.kind] = allowance.granted_here + allowance.left
        return KeyCaps(by_kind.get("tokens"), by_kind.get("budget"))

    def reserve_now(self, key_id: str, need: LimitNeed) -> LimitReservation | None:
        """Take of every cap at once; None where that takes a block. Raises RateLimited, QuotaExceeded, and
        ExceedsLimit where it could never be."""
        now_s = self._clock()
        allowances = self._allowances.get(key_id, ())
        is_short = False
        for allowance in allowances:
            allowance.turn(now_s)
            amount = _amount(allowance.kind, need)
            if amount > allowance.granted_here and amount > 0:
                if allowance.is_out_of_reach(amount, now_s):
                    raise allowance.refusal(amount, now_s)
                is_short = True
        if is_short:
            return None
        parts = []
        for allowance in allowances:
            amount = _amount(allowance.kind, need)
            allowance.granted_here -= amount
            allowance.used_s = now_s
            parts.append((allowance, allowance.window, amount))
        return LimitReservation(tuple(parts))

    async def reserve(self, key_id: str, need: LimitNeed) -> LimitReservation:
        """The same, with blocks from the database; raises also what is wrong with that."""
        while (reservation := self.reserve_now(key_id, need)) is None:
            for allowance in self._allowances.get(key_id, ()):
                amount = _amount(allowance.kind, need)
                if amount > allowance.granted_here and amount > 0:
                    await self._fill(allowance, amount)
                    break
        return reservation

    def settle(self, reservation: LimitReservation, used: LimitNeed | None) -> None:
        """Count what was used; None where nothing ran, and everything is given back."""
        now_s = self._clock()
        last = {part[0].kind: place for place, part in enumerate(reservation.parts)}
        left = {kind: 0 if used is None else _amount(kind, used) for kind in last}
        for place, (allowance, window, amount) in enumerate(reservation.parts):
            # What is more than all of it together is owed by the last.
            kind = allowance.kind
            spent = left[kind] if place == last[kind] else min(left[kind], amount)
            left[kind] -= spent
            if spent != amount:
                allowance.put_back(amount - spent, window, now_s)

    async def give_back_idle(self, idle_s: float = _IDLE_S) -> None:
        """Give back what is unused here, for other gateways; raises what is wrong with the database."""
        now_s = self._clock()
        for allowances in tuple(self._allowances.values()):
            for allowance in allowances:
                is_idle = now_s - allowance.used_s >= idle_s
                if is_idle and allowance.granted_here and allowance.asking is None:
                    await self._even(allowance, now_s)

    async def close(self) -> None:
        """Finish requests to the database, and give back what is left; raises what is wrong with it."""
        while self._asking:
            await asyncio.wait(tuple(self._asking))
        await self.give_back_idle(0.0)

    async def _even(self, allowance: Allowance, now_s: float) -> None:
        allowance.turn(now_s)
        # Gone from here before the database has it: a failure then loses an amount, and never doubles it.
        amount, allowance.granted_here = allowance.granted_here, 0
        allowance.asked_s = None
        where = (allowance.key_id, allowance.kind, allowance.window)
        if amount > 0:
            await self._store.give_back(*where, amount)
        elif amount < 0:
            allowance.granted_here += amount  # owed until it is paid, and what cannot be paid stays owed
            paid = await self._store.grant(*where, requested=-amount, cap=allowance.cap)
            allowance.granted_here += paid.amount

    async def _fill(self, allowance: Allowance, amount: int) -> None:
        """Wait for a block, together with everybody who does."""
        allowance.waiting.append(amount)
        try:
            if allowance.asking is None:
                # One turn of the loop later, so that everybody who comes with this one asks with it.
                allowance.asking = asyncio.create_task(self._ask(allowance))
                self._asking.add(allowance.asking)
            error = await asyncio.shield(allowance.asking)
        finally:
            allowance.waiting.remove(amount)
        if error is not None:
            raise error

    async def _ask(self, allowance: Allowance) -> GanglionError | None:
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        try:
            if not allowance.waiting:
                return None
            window = allowance.window
            amount, least = allowance.block()
            grant = await self._store.grant(
                allowance.key_id, allowance.kind, window, requested=amount, cap=allowance.cap, least=least
            )
            allowance.granted(grant, window, self._clock())
        except GanglionError as error:
            return error
        else:
            return None
        finally:
            allowance.asking = None
            self._asking.discard(task)


def _allowances(key: StoredKey) -> tuple[Allowance, ...]:
    caps: tuple[tuple[GrantKind, int | None, Callable[[float], Window]], ...] = (
        ("requests", key.requests_per_minute, minute_of),
        ("tokens", key.tokens_per_minute, minute_of),
        ("budget", key.budget, partial(period_of, key.budget_period)),
    )
    return tuple(Allowance(key.id, kind, cap, window_of) for kind, cap, window_of in caps if cap is not None)


def _is_same(one: Allowance, other: Allowance) -> bool:
    now_s = 0.0
    return one.cap == other.cap and one.window_of(now_s) == other.window_of(now_s)


def _amount(kind: GrantKind, need: LimitNeed) -> int:
    match kind:
        case "requests":
            return need.requests
        case "tokens":
            return need.tokens
        case "budget":
            return need.cost
