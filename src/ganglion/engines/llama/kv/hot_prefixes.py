"""KV that outlives its worker: hot prefixes are kept when it ends, and recalled when they are asked for.

Law: the pool never learns of a file. Cells are read and checked beside the steps, and only then adopted; the
sequence that wanted them is scheduled afterwards, with them or without.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from ganglion.core.errors import GanglionError
from ganglion.engines.llama.kv.holder import KvHolder
from ganglion.engines.llama.kv.prefix_disk_cache import DiskPrefix, PrefixDiskCache, read_state
from ganglion.engines.llama.kv.state_format import TOKEN, kv_fingerprint
from ganglion.engines.llama.native.library import library_path
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.native.saved_state import SavedState
from ganglion.engines.llama.plan import EnginePlan
from ganglion.scheduler.pool import KvPool
from ganglion.scheduler.prefix import BLOCK
from ganglion.scheduler.sequence import Sequence

_logger = logging.getLogger("ganglion.engines")

_READ_COST: Final = 8
"""Reading cells takes at most an eighth of computing them, so a match must be that much of what is read."""


@dataclass(frozen=True, slots=True)
class LoadedPrefix:
    """What was read for a sequence; no state when the file could not be believed."""

    disk_prefix: DiskPrefix
    state: SavedState | None


def open_disk_cache(plan: EnginePlan, model: NativeModel) -> PrefixDiskCache | None:
    """The plan's folder, indexed; None when there is none, or none that can be used."""
    # Several kinds of cache in one state only fit a context of the same shape, which nobody promises.
    if plan.kv_folder is None or not model.has_one_cache:
        return None
    if plan.projector is not None and model.has_coordinates:
        return None  # a file holds cells and not where pictures lie among them
    try:
        fingerprint = kv_fingerprint(Path(plan.path), library_path(), plan.kv_type, plan.gpu_layers)
        disk_cache = PrefixDiskCache(Path(plan.kv_folder), fingerprint, plan.kv_folder_bytes)
        disk_cache.open(plan.parked_tokens)
    except (OSError, GanglionError) as error:
        _logger.warning("hot prefixes cannot be kept in %s: %s", plan.kv_folder, error)
        return None
    return disk_cache


class HotPrefixes:
    """A worker's hot prefixes, between its pool and its disk_cache; without a disk_cache it does nothing."""

    def __init__(
        self,
        disk_cache: PrefixDiskCache | None,
        pool: KvPool,
        runner: KvHolder,
        report: Callable[[LoadedPrefix], None],
    ) -> None:
        self._disk_cache = disk_cache
        self._pool = pool
        self._runner = runner
        self._report = report
        self._waiting: deque[Sequence] = deque()
        self._is_reading = False

    @property
    def waiting(self) -> int:
        """How many sequences wait for their prefixes to be read."""
        return len(self._waiting)

    def enter(self, sequence: Sequence) -> list[Sequence]:
        """Who can be scheduled now: the sequence at once, unless cells that it shares are worth reading."""
        if self._worth_reading(sequence) is None:
            return [sequence]
        self._waiting.append(sequence)
        return self._read_next()

    def take_in(self, recalled: LoadedPrefix) -> list[Sequence]:
        """Adopt what was read; returns who can be scheduled now."""
        assert self._disk_cache is not None
        self._is_reading = False
        if recalled.state is None:
            self._disk_cache.drop(recalled.disk_prefix)
            return self._read_next()
        blob = self._pool.adopt(recalled.disk_prefix.header.salt, recalled.disk_prefix.tokens)
        self._runner.hold(blob, recalled.state)
        return [self._waiting.popleft(), *self._read_next()]

    def keep(self, budget_s: float) -> None:
        """Save what is hot, as the worker's last act."""
        if self._disk_cache is None:
            return
        until_s = monotonic() + budget_s
        try:
            self._runner.settle(self._pool.take_moves())
            kept = self._disk_cache.keep(self._pool.hot(), self._runner.state, until_s)
        except (OSError, GanglionError) as error:
            _logger.warning("hot prefixes were not kept: %s", error)
        else:
            _logger.info("%d hot prefixes kept in %d MiB", kept.prefixes, kept.size_bytes >> 20)

    def _read_next(self) -> list[Sequence]:
        """Start the next read; one at a time, so that at most one state lies outside the pool's bound."""
        ready: list[Sequence] = []
        while self._waiting and not self._is_reading:
            disk_prefix = self._worth_reading(self._waiting[0])
            if disk_prefix is None:
                ready.append(self._waiting.popleft())
            else:
                self._is_reading = True
                threading.Thread(target=self._read, args=(disk_prefix,), daemon=True).start()
        return ready

    def _read(self, disk_prefix: DiskPrefix) -> None:
        self._report(LoadedPrefix(disk_prefix, read_state(disk_prefix)))

    def _worth_reading(self, sequence: Sequence) -> DiskPrefix | None:
        if self._disk_cache is None:
            return None
        match = self._disk_cache.match(sequence.salt, sequence.tokens, sequence.chain)
        if match is None:
            return None
        disk_prefix, length = match[0], min(match[1], sequence.reusable)
        known = self._pool.reusable(sequence.salt, sequence.tokens, sequence.chain, sequence.reusable)
        gain = length - known
        size = len(disk_prefix.header.tokens) // TOKEN.itemsize
        return disk_prefix if gain >= max(BLOCK, size // _READ_COST) else None
