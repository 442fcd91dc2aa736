"""The usage of keys, summed in memory and written to the database in batches.

Laws: what was added is written once, also where a write failed or its answer was lost: a batch that was sent
is sent again as it was, under the same number, until the database has it. Memory is bounded: sums are merged
over hours, then over models, then over keys, and none is lost.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from uuid import uuid4

from ganglion.core.errors import GanglionError
from ganglion.core.events import Usage
from ganglion.gateway.access.outage_log import OutageLog
from ganglion.store.access_store import HOUR_S, AccessStore, HourlyUsage, UsageTotals

MAX_COUNTED_KEYS: Final = 1000
"""Keys that metrics name, whatever keys there are: further ones are counted together."""
_MERGED_NAME: Final = "(others)"
"""Instead of a key or a model, where sums had to be merged."""


@dataclass(slots=True)
class KeyCount:
    """One key's counts; they only rise."""

    tenant: str
    key: str
    """Its name, or its id where nobody named it."""
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: int = 0
    """In millionths of the operator's unit."""
    refusals: dict[str, int] = field(default_factory=dict)
    """By the code of the error."""


class KeyCounters:
    """The counts of all keys."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        self._name_of = name_of
        self._by_key: dict[str, KeyCount] = {}

    def used(self, key_id: str, tenant: str, usage: Usage, cost: int) -> None:
        """Count a request that ran."""
        count = self._by_key.get(key_id) or self._new(key_id, tenant)
        count.requests += 1
        count.prompt_tokens += usage.prompt_tokens
        count.completion_tokens += usage.completion_tokens
        count.cached_tokens += usage.cached_tokens
        count.cost += cost

    def refused(self, key_id: str, tenant: str, code: str) -> None:
        """Count a request that was refused."""
        count = self._by_key.get(key_id) or self._new(key_id, tenant)
        count.refusals[code] = count.refusals.get(code, 0) + 1

    def counts(self) -> tuple[KeyCount, ...]:
        """The counts of all keys."""
        return tuple(self._by_key.values())

    def _new(self, key_id: str, tenant: str) -> KeyCount:
        if len(self._by_key) >= MAX_COUNTED_KEYS:
            return self._by_key.setdefault(_MERGED_NAME, KeyCount(_MERGED_NAME, _MERGED_NAME))
        return self._by_key.setdefault(key_id, KeyCount(tenant, self._name_of(key_id)))


FLUSH_S: Final = 0.5
_BATCH: Final = 256
"""So many sums are written at once, without waiting for the time to pass."""
MAX_UNWRITTEN: Final = 8192
"""Sums kept while the database cannot be used: about 2 MiB."""
_MAX_MODEL_BYTES: Final = 256

_logger = logging.getLogger(__name__)

_Row = tuple[str, str, str, int]
"""Key, tenant, model and hour."""
UnwrittenSums = dict[_Row, list[int]]
"""Requests, prompt, completion and cached tokens, cost."""


class UsageLedger:
    """Sums what keys use. Run `run` for as long as usage is added, and call `flush` at the end."""

    def __init__(self, store: AccessStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._spender = uuid4().hex
        self._unwritten: UnwrittenSums = {}
        self._batch: tuple[HourlyUsage, ...] = ()
        self._number = 0
        self._is_full = asyncio.Event()
        self._turn = asyncio.Lock()
        self._outage = OutageLog(_logger, "and usage is kept in memory")

    @property
    def unwritten(self) -> int:
        """How many sums are not written yet."""
        return len(self._unwritten) + len(self._batch)

    def add(self, key_id: str, tenant: str, model: str, usage: Usage, cost: int) -> None:
        """Count one request."""
        hour_s = int(self._clock()) // HOUR_S * HOUR_S
        row = (key_id, tenant, _name(model), hour_s)
        sums = self._unwritten.get(row)
        if sums is None:
            if len(self._unwritten) >= MAX_UNWRITTEN:
                self._unwritten = folded(self._unwritten, MAX_UNWRITTEN // 2)
            sums = self._unwritten.setdefault(row, [0, 0, 0, 0, 0])
            if len(self._unwritten) >= _BATCH:
                self._is_full.set()
        sums[0] += 1
        sums[1] += usage.prompt_tokens
        sums[2] += usage.completion_tokens
        sums[3] += usage.cached_tokens
        sums[4] += cost

    async def flush(self) -> None:
        """Write all sums; raises what is wrong with the database, and nothing is lost then."""
        async with self._turn:
            for _ in range(2):  # what was sent before and not answered, then what has come since
                if not self._batch:
                    self._number += 1
                    self._batch = tuple(
                        HourlyUsage(*row, UsageTotals(*sums)) for row, sums in self._unwritten.items()
                    )
                    self._unwritten = {}
                if self._batch:
                    await self._store.add_usage(self._spender, self._number, self._batch)
                    self._batch = ()

    async def run(self) -> None:
        """Write the sums again and again, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._is_full.wait()
            self._is_full.clear()
            try:
                await self.flush()
            except GanglionError as error:
                self._outage.failed(error)
                await asyncio.sleep(FLUSH_S)
            else:
                self._outage.worked()


def folded(sums_by_row: UnwrittenSums, most: int) -> UnwrittenSums:
    """The same sums in fewer rows: over all hours, and over all models where that is not enough."""
    earliest_s = min(row[3] for row in sums_by_row)
    by_model = _merged(sums_by_row, lambda row: (row[0], row[1], row[2], earliest_s))
    if len(by_model) <= most:
        return by_model
    by_key = _merged(by_model, lambda row: (row[0], row[1], _MERGED_NAME, row[3]))
    return (
        by_key
        if len(by_key) <= most
        else _merged(by_key, lambda row: (_MERGED_NAME, _MERGED_NAME, _MERGED_NAME, row[3]))
    )


def _merged(sums_by_row: UnwrittenSums, into: Callable[[_Row], _Row]) -> UnwrittenSums:
    merged: UnwrittenSums = {}
    for row, sums in sums_by_row.items():
        target = merged.setdefault(into(row), [0] * len(sums))
        for place, amount in enumerate(sums):
            target[place] += amount
    return merged


@lru_cache(maxsize=1024)
def _name(model: str) -> str:
    """The model as a database can keep it."""
    encoded = model.replace("\0", "").encode(errors="replace")
    return encoded[:_MAX_MODEL_BYTES].decode(errors="ignore")
