"""One model and its status: unloaded, downloading, loading, loaded, draining, unloaded again, or failed.

Law: who uses the model, or waits for it, holds a claim; a model with claims is never taken away from them.
Claims made while it drains are for its next life.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ganglion.core.device_layout import DeviceLayout
from ganglion.core.engine import LoadOptions, LoadProgress, ManagedEngine, ModelState, Status
from ganglion.core.errors import GanglionError
from ganglion.registry.loading.candidate import Candidate
from ganglion.registry.loading.failures import RecentFailure


class Resident:
    """A model under its id, whether or not it is loaded."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.id = candidate.id
        """The name it is held under, whichever candidate has it."""
        self.is_pinned = candidate.is_pinned
        self.engine: ManagedEngine | None = None
        self.status: Status = "unloaded"
        self.error: GanglionError | None = None
        self.failure: RecentFailure | None = None
        """How its last load failed; its times are on the event loop's clock."""
        self.is_established = False
        """Whether an operator named it, or it was loaded once: else its name may be anybody's invention."""
        self.is_operator_requested = False
        """Whether somebody had it loaded, rather than naming it in a request."""
        self.tenants: set[str] = set()
        """The tenants that asked for it before it was established."""
        self.idle_since_s = 0.0
        """On the event loop's clock."""
        self.loading: asyncio.Task[None] | None = None
        self.unloading: asyncio.Task[None] | None = None
        self._last_used_s: float | None = None
        self._layout: DeviceLayout | None = None
        self._bytes = (0, 0)
        self._claims: set[object] = set()
        self._next_claims: set[object] = set()
        self._changed = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses it or waits for it."""
        return not self._claims

    @property
    def is_listed(self) -> bool:
        """Whether others hear of it: not of a name that a hub has yet to confirm, or a load that failed."""
        is_likely = (
            self.is_operator_requested or self.candidate.path is not None or self.status == "downloading"
        )
        return self.is_established or (is_likely and self.status != "failed")

    @property
    def is_looked_for(self) -> bool:
        """Whether a load runs of a name that may mean nothing: no file is here, and no hub knows it yet."""
        is_unsure = not self.is_established and self.candidate.path is None
        return is_unsure and self.loading is not None and self.status != "downloading"

    @property
    def claims(self) -> int:
        """How many use it or wait for it, now and in its next life."""
        return len(self._claims) + len(self._next_claims)

    @property
    def layout(self) -> DeviceLayout | None:
        """How it is laid over devices, or is being; None where a load decides it anew."""
        layout = self._layout
        if layout is None or self.status not in ("downloading", "loading", "loaded"):
            return None
        if layout.devices is None and self.engine is not None:
            chosen = {device for state in self.engine.models() for device in state.devices}
            layout = replace(layout, devices=tuple(sorted(filter(str.isdigit, chosen), key=int)) or None)
        return layout

    def begin(self, options: LoadOptions) -> None:
        """A load of it begins."""
        self._layout = options.layout.over(self.candidate.layout)
        self.set_status("loading")

    def serves(self, claim: object) -> bool:
        """Whether the holder of a claim may use it now: also while it drains, who came before that."""
        return self.status == "loaded" or (self.status == "draining" and claim in self._claims)

    @contextmanager
    def claimed(self) -> Iterator[object]:
        """Use it, or wait for it, until the block is left."""
        claim = object()
        (self._next_claims if self.status == "draining" else self._claims).add(claim)
        self._last_used_s = time.time()
        try:
            yield claim
        finally:
            self._claims.discard(claim)
            self._next_claims.discard(claim)
            self._last_used_s = time.time()
            self.idle_since_s = asyncio.get_running_loop().time()
            self._notify()

    def set_status(self, status: Status, error: GanglionError | None = None) -> None:
        """Change its status, and wake everyone who waits for a change."""
        self.status, self.error = status, error
        self.idle_since_s = asyncio.get_running_loop().time()
        if status != "downloading":
            self._bytes = (0, 0)
        if status == "unloaded":
            self._claims |= self._next_claims
            self._next_claims.clear()
        if status in ("loaded", "unloaded"):
            self.failure = None
        if status == "loaded":
            self.is_established = True
            self.tenants.clear()
        self._notify()

    def report(self, done: int, total: int) -> None:
        """Note bytes that were downloaded; a load that has none to fetch never says so."""
        self.status, self._bytes = "downloading", (done, total)
        self._notify()

    async def wait_changed(self) -> None:
        """Wait until something about it is different."""
        await self._changed.wait()

    def progress(self) -> LoadProgress:
        """How far its load has come."""
        return LoadProgress(self.id, self.status, *self._bytes)

    def states(self, *, loads_on_request: bool = False) -> tuple[ModelState, ...]:
        """As its engine sees it once it is loaded, else as it is known from outside."""
        if self.status in ("loaded", "draining") and self.engine is not None:
            states = self.engine.models()
        else:
            states = (self._from_outside(),)
        status = self.status
        return tuple(
            replace(
                state,
                status=state.status if status == "loaded" else status,
                aliases=tuple(dict.fromkeys((*state.aliases, *self.candidate.aliases))),
                loads_on_request=loads_on_request,
                is_pinned=self.is_pinned,
                priority=self.candidate.priority,
                last_used_s=self._last_used_s,
                source="; ".join(filter(None, (self.candidate.origin, self.candidate.reason))),
            )
            for state in states
        )

    @property
    def capabilities(self) -> frozenset[str]:
        """What it can do, as its engine says once it is loaded, else as its file does."""
        return frozenset(each for state in self.states() for each in state.capabilities)

    def _from_outside(self) -> ModelState:
        candidate = self.candidate
        return ModelState(
            id=candidate.id,
            engine=candidate.engine,
            status=self.status,
            context_length=self._context_length(),
            created_s=candidate.created_s,
            capabilities=candidate.capabilities,
            sampling=candidate.sampling,
            queued=self.claims,
            bytes_done=self._bytes[0],
            bytes_total=self._bytes[1],
            error=None if self.error is None else self.error.message,
        )

    def _context_length(self) -> int:
        """As it is planned; who loads it may have asked for another, which its engine knows."""
        if self.engine is None:
            return self.candidate.context_length
        return self.engine.models()[0].context_length

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
