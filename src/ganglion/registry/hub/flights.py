"""Work shared by all who ask for it: everyone gets the progress, and it stops when the last one leaves."""

import os
import socket
import threading
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from ganglion.registry.hub.download import Report

_Result = TypeVar("_Result")

_POLL_S: Final = 0.05
_GRACE_S: Final = 5.0
"""How long the last one to leave waits for the work to end; only a name lookup takes longer."""


class FlightCancelled(Exception):
    """The caller no longer wants the result."""


class _HasSocket(Protocol):
    """What can be read from and knows its descriptor."""

    def fileno(self) -> int: ...


class StopSignal:
    """A request to stop, which also wakes a read that waits for a silent peer."""

    def __init__(self) -> None:
        self._wish = threading.Event()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def set(self) -> None:
        """Request the stop, from any thread."""
        with self._lock:
            self._wish.set()
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)

    def check(self) -> None:
        """Raise Cancelled once the stop was requested."""
        if self._wish.is_set():
            raise FlightCancelled

    def sleep(self, duration_s: float) -> None:
        """Wait; raises Cancelled as soon as the stop is requested."""
        self._wish.wait(duration_s)
        self.check()

    @contextmanager
    def waking(self, response: _HasSocket) -> Generator[None]:
        """While inside, `set` ends reads of this response at once."""
        # A descriptor of our own: the response may be closed, and its number given away, while `set` runs.
        connection = None
        with suppress(OSError):
            connection = socket.socket(fileno=os.dup(response.fileno()))
        with self._lock:
            self._connection = connection
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._connection = None
                if connection is not None:
                    connection.close()


@dataclass(slots=True, eq=False)
class _Flight:
    stop: StopSignal
    future: "Future[object]" = field(default_factory=Future)
    waiters: int = 0
    progress: tuple[int, int] | None = None

    def report(self, done: int, total: int) -> None:
        self.progress = (done, total)


class Flights:
    """The work in progress, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flying: dict[Hashable, _Flight] = {}

    def join(
        self,
        key: Hashable,
        work: Callable[[Report, StopSignal], _Result],
        report: Report,
        cancelled: Callable[[], bool],
    ) -> _Result:
        """The result of the work under this key, begun now or by an earlier caller.

        Reports come in the caller's own thread. Raises Cancelled when `cancelled` says so, and then the
        work goes on for the others.
        """
        flight = self._board(key, work)
        try:
            return _wait(flight, report, cancelled)  # type: ignore[return-value]  # a key stands for one work
        finally:
            self._leave(key, flight)

    def _board(self, key: Hashable, work: Callable[[Report, StopSignal], object]) -> _Flight:
        with self._lock:
            flight = self._flying.get(key)
            if flight is None:
                flight = self._flying[key] = _Flight(StopSignal())
                pilot = ThreadPoolExecutor(1, thread_name_prefix="ganglion-fetch")
                flight.future = pilot.submit(work, flight.report, flight.stop)
                pilot.shutdown(wait=False)
            flight.waiters += 1
            return flight

    def _leave(self, key: Hashable, flight: _Flight) -> None:
        with self._lock:
            flight.waiters -= 1
            if flight.waiters:
                return
            del self._flying[key]
        flight.stop.set()
        wait_for([flight.future], _GRACE_S)


def _wait(flight: _Flight, report: Report, cancelled: Callable[[], bool]) -> object:
    reported = None
    while True:
        is_done = bool(wait_for([flight.future], _POLL_S).done)
        if flight.progress is not None and flight.progress != reported:
            reported = flight.progress
            report(*reported)
        if is_done:
            return flight.future.result()
        if cancelled():
            raise FlightCancelled
