"""A slow reading, taken on a thread of its own."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

_logger = logging.getLogger("ganglion.registry")

_T = TypeVar("_T")


class BackgroundReading(Generic[_T]):
    """The last value that `take` returned; whoever asks gets it at once, and may set off the next reading.

    One reading runs at a time, on a daemon thread: a driver that never answers holds up neither a request nor
    the end of the process.
    """

    def __init__(
        self, take: Callable[[], _T], *, fresh_s: float = math.inf, shown_s: float = math.inf
    ) -> None:
        self._take = take
        self._fresh_s = fresh_s
        """How old a value may be before a new one is taken."""
        self._shown_s = shown_s
        """How old it may be to be shown at all."""
        self._lock = threading.Lock()
        self._taken: tuple[_T, float] | None = None
        self._taking: Future[_T] | None = None

    async def latest(self, within_s: float | None = None) -> _T:
        """The last value; waits only where there is none to show, at most `within_s`, then TimeoutError."""
        with self._lock:
            taken = self._taken
            age_s = 0.0 if taken is None else time.monotonic() - taken[1]
            if self._taking is None and (taken is None or age_s > self._fresh_s):
                self._taking = self._begin()
            taking = self._taking
        if taken is not None and (taking is None or age_s <= self._shown_s):
            return taken[0]
        assert taking is not None
        async with asyncio.timeout(within_s):
            # Giving up here cancels nothing: a future that runs cannot be cancelled, and others wait for it.
            return await asyncio.wrap_future(taking)

    def _begin(self) -> Future[_T]:
        taking: Future[_T] = Future()
        taking.set_running_or_notify_cancel()
        threading.Thread(target=self._run, args=(taking,), name="reading", daemon=True).start()
        return taking

    def _run(self, taking: Future[_T]) -> None:
        try:
            value = self._take()
        except Exception as error:
            # The outermost door of the thread: whoever waits is told, and the next request tries again.
            _logger.exception("a reading failed")
            self._end(None)
            taking.set_exception(error)
        else:
            self._end((value, time.monotonic()))
            taking.set_result(value)

    def _end(self, taken: tuple[_T, float] | None) -> None:
        with self._lock:
            self._taken = taken or self._taken
            self._taking = None
