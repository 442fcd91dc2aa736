"""Admits requests by their keys, within their limits, and counts what they use.

Call `start` before the first request, and `close` after the last one: it writes usage that is still in memory
and gives back what is left of limits. The store is closed by whoever opened it.
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
_OPEN_ANSWER_TOKENS: Final = 4096
"""What an answer may be whose request does not bound it, where its key has a cap on tokens or cost."""
_SHORTEST: Final = 4
"""An open answer is cut short by what is left of a cap to this part of its length, and refused below."""
_MAX_COST: Final = 10**15
_UPKEEP_S: Final = 1.0
_SWEEP_S: Final = 600.0

_NOTHING: Final = LimitNeed(0, 0)

_logger = logging.getLogger(__name__)


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
        open_answer_tokens: int = _OPEN_ANSWER_TOKENS,
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
        self._counters = KeyCounters(self.keys.name_of)
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self.identify = self.keys.identify

    async def start(self) -> None:
        """Read the keys, and begin to keep up with them; raises what is wrong with the database."""
        await self.keys.load()
        self._tasks = (
            asyncio.create_task(_forever(self.keys.watch)),
            asyncio.create_task(_forever(self._ledger.run)),
            asyncio.create_task(_forever(self._keep_up)),
        )

    async def close(self) -> None:
        """Write usage and give back what is left of limits; what cannot be written is logged."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        for end in (self._ledger.flush, self._limits.close):
            try:
                await end()
            except GanglionError as error:
                _logger.error("usage and limits could not be written completely at shutdown: %s", error)

    def usage_counts(self) -> tuple[KeyCount, ...]:
        """What each key used here since the start."""
        return self._counters.counts()

    def admit_now(self, identity: Identity, request: AdmissionRequest) -> Admission | None:
        try:
            _check_model(identity, request.model)
            if not identity.is_limited:
                return _KeyAdmission(self, identity, request.model)
            need, answer_tokens = self._need(identity, request)
            reservation = self._limits.reserve_now(identity.key_id, need)
        except GanglionError as error:
            self._count_refusal(identity, error)
            raise
        if reservation is None:
            return None
        return _KeyAdmission(
            self, identity, request.model, reservation, need=need, answer_tokens=answer_tokens
        )

    async def admit(self, identity: Identity, request: AdmissionRequest) -> Admission:
        admission = self.admit_now(identity, request)
        if admission is not None:
            return admission
        try:
            need, answer_tokens = self._need(identity, request)
            try:
                reservation = await self._limits.reserve(identity.key_id, need)
            except RateLimited:
                # Others may have taken more than was known: what is left now may do for a shorter answer.
                less, answer_tokens = self._need(identity, request)
                if less == need:
                    raise
                need = less
                reservation = await self._limits.reserve(identity.key_id, need)
        except GanglionError as error:
            self._count_refusal(identity, error)
            raise
        return _KeyAdmission(
            self, identity, request.model, reservation, need=need, answer_tokens=answer_tokens
        )

    async def reserve_more(self, admission: "_KeyAdmission", request: AdmissionRequest) -> None:
        """Reserve what an admission lacks of this; for `_KeyAdmission`."""
        held = admission.need
        if held is None or admission.reservation is None:
            return
        identity = admission.identity
        try:
            need, answer_tokens = self._need(identity, request, held)
            more = LimitNeed(max(0, need.tokens - held.tokens), max(0, need.cost - held.cost), requests=0)
            if more.tokens or more.cost:
                reserved = await self._limits.reserve(identity.key_id, more)
                if admission.is_settled:  # the client has left meanwhile
                    self._limits.settle(reserved, None)
                    return
                # Settled as one, though each part stays in its own window.
                admission.reservation = LimitReservation((*admission.reservation.parts, *reserved.parts))
                admission.need = LimitNeed(held.tokens + more.tokens, held.cost + more.cost)
        except GanglionError as error:
            self._count_refusal(identity, error)
            raise
        admission.answer_tokens = answer_tokens

    def _count_refusal(self, identity: Identity, error: GanglionError) -> None:
        self._counters.refused(identity.key_id, identity.tenant, error.code)

    def settle(self, admission: "_KeyAdmission", usage: Usage | None) -> None:
        """Count what a request used; for `_KeyAdmission`."""
        reservation = admission.reservation
        if usage is None:
            if reservation is not None:
                self._limits.settle(reservation, None)
            return
        identity, model = admission.identity, admission.model
        usage = _plausible(usage)
        price = self._prices(model)
        cost = 0 if price is None else min(price.of(usage), _MAX_COST)
        self._ledger.add(identity.key_id, identity.tenant, model, usage, cost)
        self._counters.used(identity.key_id, identity.tenant, usage, cost)
        if reservation is not None:
            self._limits.settle(reservation, LimitNeed(usage.prompt_tokens + usage.completion_tokens, cost))

    def booked_as(self, model: str) -> str:
        """What answers to a name are booked as, unless it is known who answered; for `_KeyAdmission`."""
        return self._booked_as(model)

    def _need(
        self, identity: Identity, request: AdmissionRequest, held: LimitNeed = _NOTHING
    ) -> tuple[LimitNeed, int | None]:
        """What a request takes at most beside what it holds already, and how long each open answer may be."""
        if not identity.is_metered:
            return _NOTHING, None
        tokens = max(0, min(request.tokens, 2 * MAX_TOKENS))
        price, each = self._dearest(request.model), None
        if price is None and self._limits.caps_of(identity.key_id).tokens is None:
            return _NOTHING, None  # a budget says nothing about what costs nothing
        if request.open_answers:
            each = self._each(identity, request, tokens, price, held)
            tokens = min(tokens + each * request.open_answers, 2 * MAX_TOKENS)
        return LimitNeed(tokens, 0 if price is None else min(price.at_most(tokens), _MAX_COST)), each

    def _each(
        self,
        identity: Identity,
        request: AdmissionRequest,
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
            return (min(most, default=MAX_TOKENS) - tokens) // request.open_answers

        default = self._open_answer_tokens if request.answer_tokens is None else request.answer_tokens
        whole = max(1, min(default, room(self._limits.caps_of(identity.key_id))))
        left = room(self._limits.left_of(identity.key_id), held)
        return max(min(whole, left), -(-whole // _SHORTEST))

    def _configure(self, known: dict[str, KnownKey]) -> None:
        self._limits.configure(
            {
                key_id: each.stored
                for key_id, each in known.items()
                if each.stored is not None and each.identity.is_limited
            }
        )

    async def _keep_up(self) -> None:
        swept_s = -_SWEEP_S
        while True:
            await asyncio.sleep(_UPKEEP_S)
            # Those who need the database log that it cannot be used; this is tried again.
            with suppress(GanglionError):
                await self._limits.give_back_idle()
                if time.monotonic() - swept_s >= _SWEEP_S:
                    await self._store.sweep()
                    swept_s = time.monotonic()


class _KeyAdmission:
    """What was reserved of a key's limits for one request."""

    __slots__ = (
        "_gatekeeper",
        "_model",
        "_requested",
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
        self._requested = model
        self._model = ""
        self.identity = identity
        self.reservation = reservation
        self.need = need
        self.answer_tokens = answer_tokens
        """How long each answer may be whose length the request does not bound; None for no bound."""

    @property
    def model(self) -> str:
        """What its answer is booked as."""
        return self._model or self._gatekeeper.booked_as(self._requested)

    def answered_by(self, model: str) -> None:
        """Another model than the one that was asked for answers, and is what is booked."""
        self._model = model

    async def reserve_more(self, request: AdmissionRequest) -> None:
        """Reserve what is missing where it turns out that so much can be taken."""
        if not self.is_settled:
            await self._gatekeeper.reserve_more(self, request)

    def settle(self, usage: Usage | None) -> None:
        """Count what the request used; only the first call does anything."""
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
    if (
        0 <= usage.cached_tokens <= usage.prompt_tokens <= MAX_TOKENS
        and 0 <= usage.completion_tokens <= MAX_TOKENS
        and not usage.reasoning_tokens
    ):
        return usage
    prompt_tokens = max(0, min(usage.prompt_tokens, MAX_TOKENS))
    return Usage(
        prompt_tokens,
        max(0, min(usage.completion_tokens, MAX_TOKENS)),
        max(0, min(usage.cached_tokens, prompt_tokens)),
    )


async def _forever(work: Callable[[], Awaitable[None]]) -> None:
    """Repeat until cancelled; a bug is logged and the work goes on, or no revocation would be seen."""
    while True:
        try:
            await work()
        except Exception:  # whatever it is, the task goes on
            _logger.exception("a background task of the keys failed, and is started again")
            await asyncio.sleep(_UPKEEP_S)
