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

from ganglion.core.errors import GanglionError, NotAllowed
from ganglion.core.events import Usage
from ganglion.gateway.admission import Admission, Identity, Wanted
from ganglion.gateway.keys import Keys, Known
from ganglion.gateway.ledger import Ledger
from ganglion.gateway.limits import Limits, Need, Reservation
from ganglion.gateway.price import Price
from ganglion.gateway.tally import KeyCount, Tally
from ganglion.store.access import AccessStore

MAX_TOKENS: Final = 10**9
"""Of one request: what a foreign server says it used is not to be believed beyond this."""
MAX_COST: Final = 10**15
UPKEEP_S: Final = 1.0
SWEEP_S: Final = 600.0

log = logging.getLogger(__name__)


class KeyGatekeeper:
    """A Gatekeeper over keys of a database and of the command line."""

    def __init__(
        self,
        store: AccessStore,
        static_keys: tuple[str, ...] = (),
        prices: Callable[[str], Price | None] = lambda model: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._prices = prices
        self.keys = Keys(store, static_keys, clock=clock, on_change=self._configure)
        self._limits = Limits(store, clock=clock)
        self._ledger = Ledger(store, clock=clock)
        self._tally = Tally(self.keys.name_of)
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
                log.error("keys: not all was written at the end: %s", error.message)

    def usage_counts(self) -> tuple[KeyCount, ...]:
        """What each key did here since the start."""
        return self._tally.counts()

    def admit_now(self, identity: Identity, wanted: Wanted) -> Admission | None:
        try:
            _check_model(identity, wanted.model)
            if not identity.is_limited:
                return Place(self, identity, wanted.model, None)
            reservation = self._limits.reserve_now(identity.key_id, self._need(wanted))
        except GanglionError as error:
            self._tally.refused(identity.key_id, identity.tenant, error.code)
            raise
        return None if reservation is None else Place(self, identity, wanted.model, reservation)

    async def admit(self, identity: Identity, wanted: Wanted) -> Admission:
        try:
            _check_model(identity, wanted.model)
            if not identity.is_limited:
                return Place(self, identity, wanted.model, None)
            reservation = await self._limits.reserve(identity.key_id, self._need(wanted))
        except GanglionError as error:
            self._tally.refused(identity.key_id, identity.tenant, error.code)
            raise
        return Place(self, identity, wanted.model, reservation)

    def settle(self, place: "Place", usage: Usage | None) -> None:
        """Count what a request came to; for `Place`."""
        reservation = place.reservation
        if usage is None:
            if reservation is not None:
                self._limits.settle(reservation, None)
            return
        identity, model = place.identity, place.model
        usage = _believed(usage)
        price = self._prices(model)
        cost = 0 if price is None else min(price.of(usage), MAX_COST)
        self._ledger.add(identity.key_id, identity.tenant, model, usage, cost)
        self._tally.used(identity.key_id, identity.tenant, usage, cost)
        if reservation is not None:
            self._limits.settle(reservation, Need(usage.prompt_tokens + usage.completion_tokens, cost))

    def _need(self, wanted: Wanted) -> Need:
        tokens = max(0, min(wanted.tokens, MAX_TOKENS))
        price = self._prices(wanted.model)
        return Need(tokens, 0 if price is None else min(price.at_most(tokens), MAX_COST))

    def _configure(self, known: dict[str, Known]) -> None:
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


class Place:
    """What was reserved for one request."""

    __slots__ = ("_gatekeeper", "_is_settled", "identity", "model", "reservation")

    def __init__(
        self, gatekeeper: KeyGatekeeper, identity: Identity, model: str, reservation: Reservation | None
    ) -> None:
        self._gatekeeper = gatekeeper
        self._is_settled = False
        self.identity = identity
        self.model = model
        self.reservation = reservation

    def settle(self, usage: Usage | None) -> None:
        """Say once what it came to; again says nothing."""
        if not self._is_settled:
            self._is_settled = True
            self._gatekeeper.settle(self, usage)


def _check_model(identity: Identity, model: str) -> None:
    if identity.models is not None and model not in identity.models:
        raise NotAllowed(
            f"The key {identity.key_id} may not use the model {model[:128]!r}.",
            param="model",
            hint="GET /v1/models lists what it may use.",
        )


def _believed(usage: Usage) -> Usage:
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
