"""Lets requests in by their keys, within their caps, and counts what they come to.

`start` before the first request; `close` after the last one writes what is held and gives back what is left.
The store is whoever's that opened it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from ganglion.core.errors import GanglionError, NotAllowed, RateLimited
from ganglion.core.events import Usage
from ganglion.gateway.access.admission import Admission, AdmissionRequest, Identity
from ganglion.gateway.access.keys import ApiKeys, KnownKey
from ganglion.gateway.access.ledger import KeyCount, KeyCounters, UsageLedger
from ganglion.gateway.access.limits import KeyCaps, KeyLimits, LimitNeed, LimitReservation
from ganglion.gateway.access.price import TokenPrice
from ganglion.store.access_store import AccessStore

MAX_TOKENS: Final = 10**9
"""Of one prompt or answer: what a foreign server says it used is not to be believed beyond this."""
OPEN_ANSWER_TOKENS: Final = 4096
"""What an answer may be whose request does not bound it, where its key has a cap on tokens or cost."""
SHORTEST: Final = 4
"""An open answer is cut short by what is left of a cap to this part of its length, and refused below."""
MAX_COST: Final = 10**15
UPKEEP_S: Final = 1.0
SWEEP_S: Final = 600.0

_NOTHING: Final = LimitNeed(0, 0)

log = logging.getLogger(__name__)


class KeyGatekeeper:
    """A Gatekeeper over keys of a database and of the command line."""

    def __init__(
        self,
        store: AccessStore,
        static_keys: tuple[str, ...] = (),
        prices: Callable[[str], TokenPrice | None] = lambda model: None,
        clock: Callable[[], float] = time.time,
        *,
        dearest: Callable[[str], TokenPrice | None] | None = None,
        booked_as: Callable[[str], str] = lambda model: model,
        open_answer_tokens: int = OPEN_ANSWER_TOKENS,
        admin_keys: tuple[str, ...] = (),
        most_urgent: int = 0,
    ) -> None:
        """`prices` are those of models as they are booked, `dearest` is the most that a request by this name
        may be charged, and `booked_as` is one of a bounded set of names for whatever a client wrote."""
        self._store = store
        self._prices = prices
        self._dearest = dearest or prices
        self._booked_as = booked_as
        self._open_answer_tokens = open_answer_tokens
        self.keys = ApiKeys(
            store,
            static_keys,
            admin_keys=admin_keys,
            most_urgent=most_urgent,
            clock=clock,
            on_change=self._configure,
        )
        self._limits = KeyLimits(store, clock=clock)
        self._ledger = UsageLedger(store, clock=clock)
        self._tally = KeyCounters(self.keys.name_of)
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self.identify = self.keys.identify

    async def start(self) -> None:
        """Take in the keys, and keep up with them from then on; raises what is wrong with the database."""
        await self.keys.load()
        self._tasks = (
            asyncio.create_task(_forever(self.keys.watch)),
            asyncio.create_task(_forever(self._ledger.run)),
            asyncio.create_task(_forever(self._keep_up)),
        )

    async def close(self) -> None:
        """Write what is held and give back what is left; what cannot be written is said in the log."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        for end in (self._ledger.flush, self._limits.close):
            try:
                await end()
            except GanglionError as error:
                log.error("keys: not all was written at the end: %s", error)

    def usage_counts(self) -> tuple[KeyCount, ...]:
        """What each key did here since the start."""
        return self._tally.counts()

    def admit_now(self, identity: Identity, wanted: AdmissionRequest) -> Admission | None:
        try:
            _check_model(identity, wanted.model)
            if not identity.is_limited:
                return KeyAdmission(self, identity, wanted.model)
            need, answer_tokens = self._need(identity, wanted)
            reservation = self._limits.reserve_now(identity.key_id, need)
        except GanglionError as error:
            self._tally.refused(identity.key_id, identity.tenant, error.code)
            raise
        if reservation is None:
            return None
        return KeyAdmission(self, identity, wanted.model, reservation, need=need, answer_tokens=answer_tokens)

    async def admit(self, identity: Identity, wanted: AdmissionRequest) -> Admission:
        try:
            _check_model(identity, wanted.model)
            if not identity.is_limited:
                return KeyAdmission(self, identity, wanted.model)
            need, answer_tokens = self._need(identity, wanted)
            try:
                reservation = await self._limits.reserve(identity.key_id, need)
            except RateLimited:
                # Others may have taken more than was known: what is left now may do for a shorter answer.
                less, answer_tokens = self._need(identity, wanted)
                if less == need:
                    raise
                need = less
                reservation = await self._limits.reserve(identity.key_id, need)
        except GanglionError as error:
            self._tally.refused(identity.key_id, identity.tenant, error.code)
            raise
        return KeyAdmission(self, identity, wanted.model, reservation, need=need, answer_tokens=answer_tokens)

    async def reserve_more(self, place: "KeyAdmission", wanted: AdmissionRequest) -> None:
        """Reserve what a place lacks of this; for `KeyAdmission`."""
        held = place.need
        if held is None or place.reservation is None:
            return
        try:
            need, answer_tokens = self._need(place.identity, wanted, held)
            more = LimitNeed(max(0, need.tokens - held.tokens), max(0, need.cost - held.cost), requests=0)
            if more.tokens or more.cost:
                reserved = await self._limits.reserve(place.identity.key_id, more)
                if place.is_settled:  # whoever asked has left meanwhile
                    self._limits.settle(reserved, None)
                    return
                place.reservation = place.reservation.combined_with(reserved)
                place.need = LimitNeed(held.tokens + more.tokens, held.cost + more.cost)
        except GanglionError as error:
            self._tally.refused(place.identity.key_id, place.identity.tenant, error.code)
            raise
        place.answer_tokens = answer_tokens

    def settle(self, place: "KeyAdmission", usage: Usage | None) -> None:
        """Count what a request came to; for `KeyAdmission`."""
        reservation = place.reservation
        if usage is None:
            if reservation is not None:
                self._limits.settle(reservation, None)
            return
        identity, model = place.identity, place.model
        usage = _plausible(usage)
        price = self._prices(model)
        cost = 0 if price is None else min(price.of(usage), MAX_COST)
        self._ledger.add(identity.key_id, identity.tenant, model, usage, cost)
        self._tally.used(identity.key_id, identity.tenant, usage, cost)
        if reservation is not None:
            self._limits.settle(reservation, LimitNeed(usage.prompt_tokens + usage.completion_tokens, cost))

    def booked_as(self, model: str) -> str:
        """What answers to a name are booked as, as long as nobody says who answered; for `KeyAdmission`."""
        return self._booked_as(model)

    def _need(
        self, identity: Identity, wanted: AdmissionRequest, held: LimitNeed = _NOTHING
    ) -> tuple[LimitNeed, int | None]:
        """What a request takes at most beside what it holds already, and how long each open answer may be."""
        if not identity.is_metered:
            return _NOTHING, None
        tokens = max(0, min(wanted.tokens, 2 * MAX_TOKENS))
        price, each = self._dearest(wanted.model), None
        if price is None and self._limits.caps_of(identity.key_id).tokens is None:
            return _NOTHING, None  # a budget says nothing about what costs nothing
        if wanted.open_answers:
            each = self._each(identity, wanted, tokens, price, held)
            tokens = min(tokens + each * wanted.open_answers, 2 * MAX_TOKENS)
        return LimitNeed(tokens, 0 if price is None else min(price.at_most(tokens), MAX_COST)), each

    def _each(
        self,
        identity: Identity,
        wanted: AdmissionRequest,
        tokens: int,
        price: TokenPrice | None,
        held: LimitNeed,
    ) -> int:
        """How long an open answer may be: as by default, or what its key can ever have if that is less.

        Where less than that is left now, a shorter answer is better than none, down to a part of it.
        """

        def room(caps: KeyCaps, held: LimitNeed = _NOTHING) -> int:
            most = [
                *([] if caps.tokens is None else [caps.tokens + held.tokens]),
                *([] if caps.cost is None or price is None else [price.tokens_for(caps.cost + held.cost)]),
            ]
            return (min(most, default=MAX_TOKENS) - tokens) // wanted.open_answers

        default = self._open_answer_tokens if wanted.answer_tokens is None else wanted.answer_tokens
        whole = max(1, min(default, room(self._limits.caps_of(identity.key_id))))
        left = room(self._limits.left_of(identity.key_id), held)
        return max(min(whole, left), -(-whole // SHORTEST))

    def _configure(self, known: dict[str, KnownKey]) -> None:
        self._limits.configure(
            {
                key_id: each.stored
                for key_id, each in known.items()
                if each.stored is not None and each.identity.is_limited
            }
        )

    async def _keep_up(self) -> None:
        swept_s = -SWEEP_S
        while True:
            await asyncio.sleep(UPKEEP_S)
            # A database that is away is said by those who need it; this comes again.
            with suppress(GanglionError):
                await self._limits.give_back_idle()
                if time.monotonic() - swept_s >= SWEEP_S:
                    await self._store.sweep()
                    swept_s = time.monotonic()


class KeyAdmission:
    """What was reserved for one request."""

    __slots__ = (
        "_asked",
        "_gatekeeper",
        "_model",
        "answer_tokens",
        "identity",
        "is_settled",
        "need",
        "reservation",
    )

    def __init__(
        self,
        gatekeeper: KeyGatekeeper,
        identity: Identity,
        model: str,
        reservation: LimitReservation | None = None,
        *,
        need: LimitNeed | None = None,
        answer_tokens: int | None = None,
    ) -> None:
        self._gatekeeper = gatekeeper
        self.is_settled = False
        self._asked = model
        self._model = ""
        self.identity = identity
        self.reservation = reservation
        self.need = need
        self.answer_tokens = answer_tokens
        """How long each answer may be that nobody bounded; None for as long as it likes."""

    @property
    def model(self) -> str:
        """What its answer is booked as."""
        return self._model or self._gatekeeper.booked_as(self._asked)

    def answered_by(self, model: str) -> None:
        """Another model than the one that was asked for answers, and is what is booked."""
        self._model = model

    async def reserve_more(self, wanted: AdmissionRequest) -> None:
        """Reserve what is missing where it turns out that so much can be taken."""
        if not self.is_settled:
            await self._gatekeeper.reserve_more(self, wanted)

    def settle(self, usage: Usage | None) -> None:
        """Say once what it came to; again says nothing."""
        if not self.is_settled:
            self.is_settled = True
            self._gatekeeper.settle(self, usage)


def _check_model(identity: Identity, model: str) -> None:
    if identity.models is not None and model not in identity.models:
        raise NotAllowed(
            f"The key {identity.key_id} may not use the model {model[:128]!r}.",
            param="model",
            hint="GET /v1/models lists what it may use.",
        )


def _plausible(usage: Usage) -> Usage:
    """The counts within what is possible."""
    prompt_tokens, completion_tokens, cached_tokens = (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
    )
    if 0 <= cached_tokens <= prompt_tokens <= MAX_TOKENS and 0 <= completion_tokens <= MAX_TOKENS:
        return usage
    prompt_tokens = max(0, min(prompt_tokens, MAX_TOKENS))
    return Usage(
        prompt_tokens,
        max(0, min(completion_tokens, MAX_TOKENS)),
        max(0, min(cached_tokens, prompt_tokens)),
    )


async def _forever(work: Callable[[], Awaitable[None]]) -> None:
    """Do it until cancelled; a fault of ours is said, and it goes on: else no revocation would be seen."""
    while True:
        try:
            await work()
        except Exception:  # the task's outermost door
            log.exception("keys: upkeep failed and begins again")
            await asyncio.sleep(UPKEEP_S)
